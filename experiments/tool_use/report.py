"""The report of the study: measures, a picture, and the sections of the page in order.

training-*.json ─▶ a Comparison ─▶ figures.csv, learning.svg ─▶ page
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.experiments.findings import Training, read_study
from agentrl.experiments.report.comparison import START, Comparison, Measure, curve, verdict
from agentrl.experiments.report.markdown import (
    describe_tasks,
    difference,
    figures_link,
    image,
    number,
    place,
    share,
    table,
)
from agentrl.experiments.report.page import write_figures, write_page
from agentrl.experiments.report.plots import label, line, picture
from agentrl.experiments.task_norm.report import final

FINAL, USED, UPDATES = "final", "tool used", "updates"
TITLE = "Does a policy learn to use a tool, and what does it gain?"


@dataclass(frozen=True, slots=True)
class ToolArm:
    """`tool`: whether it is offered. `base`: the arm that it is compared with."""

    tool: bool
    trained: bool
    base: str


START_WITHOUT = f"{START}-without"
ARMS = {
    START: ToolArm(tool=True, trained=False, base=START),
    "tool": ToolArm(tool=True, trained=True, base=START),
    START_WITHOUT: ToolArm(tool=False, trained=False, base=START_WITHOUT),
    "without": ToolArm(tool=False, trained=True, base=START_WITHOUT),
}
ORDER = tuple(ARMS)
DONE = """\
    agentrl experiment tool-use --out {out} --seeds {seeds} \\
      --tokens {tokens} --items {items} --checks {checks}

No GPU, one thread; a seed repeats a training exactly. Policy `{model}`, from experts that use the
tool in some episodes only; `experiments/configs/tool-use.toml`; {tokens:,} sampled tokens a
training, in rounds of {groups} groups of {size} episodes, and one update each. Trainings: {made}.
"""
MEANING = """\
The arms `{start}` and `tool` are offered the tool, `{start_without}` and `without` are not; the
first of each pair is the policy before training. All arms of a seed see the same items in the same
order. *Final* is success in {attempts} attempts at each of {items} held-out items at temperature
{temperature:g}, different items for each seed; *tool used* is the share of the attempts with an
answer in which the tool ran. Intervals are 95 %, Student's t over seeds; differences are paired by
seed.
"""


def write(out: Path) -> Path:
    """Write the page; return its path. Raises ConfigError without results, or for mixed designs."""
    found = compare_arms(read_study(out, Training))
    write_figures(out / "figures.csv", found)
    picture(out / "learning.svg", found.tasks, partial(_learning, found))
    return write_page(out, TITLE, lines(out, found))


def compare_arms(trainings: Sequence[Training]) -> Comparison[Training]:
    ordered = sorted(trainings, key=lambda each: (place(each.arm, ORDER), each.seed))
    measures: dict[str, Measure[Training]] = {FINAL: final, USED: tool_used}
    measures[UPDATES] = lambda each, _: each.points[-1].version if each.points else None
    tasks = sorted({skill.task for each in ordered for skill in each.skills})
    return Comparison(ordered, tasks, measures, lambda arm: ARMS[arm].base)


def tool_used(training: Training, task: str) -> float | None:
    """Return the share of the final episodes with an answer in which the tool ran."""
    for skill in training.skills:
        if skill.task == task:
            return skill.metrics.get("tool_used")
    return None


def lines(out: Path, found: Comparison[Training]) -> Iterator[str]:
    yield from verdict(found.differences((FINAL, USED), found.tasks))
    design = found.trainings[0].design
    config = design.config
    yield "## What was done"
    yield ""
    yield DONE.format(
        out=out,
        seeds=max(len(seeds) for seeds in found.arms.values()),
        tokens=design.tokens,
        items=design.items,
        checks=design.checks,
        model=config["model"]["path"],
        groups=config["dispatch"]["groups_per_update"],
        size=config["dispatch"]["group_size"],
        made=found.seeds(),
    )
    yield from describe_tasks(config["tasks"])
    yield MEANING.format(
        start=START,
        start_without=START_WITHOUT,
        attempts=design.attempts,
        items=design.items,
        temperature=config["sampling"]["temperature"],
    )
    for task in found.tasks:
        yield f"## {task}"
        yield ""
        yield from _figures(found, task)
    yield "Held-out success by tokens sampled in training:"
    yield ""
    yield from image(out, "learning.svg")
    yield figures_link(out, "figures.csv")


def _figures(found: Comparison[Training], task: str) -> Iterator[str]:
    yield from table(
        ["arm", "final", "final, minus before", "tool used", "tool used, minus before", "updates"],
        (
            [
                arm,
                share(found.estimate(FINAL, arm, task)),
                difference(found.difference(FINAL, arm, task)),
                share(found.estimate(USED, arm, task)),
                difference(found.difference(USED, arm, task)),
                number(found.estimate(UPDATES, arm)),
            ]
            for arm in found.arms
        ),
    )


def _learning(found: Comparison[Training], axes: Any, task: str) -> None:
    def checks(training: Training) -> list[tuple[float, float]]:
        return [(each.tokens, each.success[task]) for each in training.checks]

    for arm, seeds in found.arms.items():
        points = curve(seeds, checks)
        if len(points) > 1:
            tokens, success = zip(*points, strict=True)
            line(axes, tokens, success, (f"C{place(arm, ORDER)}", "o-", arm))
    label(axes, task, "sampled tokens", "held-out success at T = 1")
