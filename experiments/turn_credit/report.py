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
from agentrl.experiments.task_norm.report import final, on_the_way

FINAL, WAY, UPDATES = "final", "on the way", "updates"
TITLE = "Which credit of turns learns long episodes faster?"


@dataclass(frozen=True, slots=True)
class CreditArm:
    """`progress`: weight of the process reward. `base`: the arm that it is compared with."""

    credit: str
    progress: float
    base: str


PROGRESS = 0.5
ARMS = {
    "outcome": CreditArm("outcome", 0.0, "outcome"),
    "discounted": CreditArm("discounted", 0.0, "outcome"),
    "gigpo": CreditArm("gigpo", 0.0, "outcome"),
    "outcome-progress": CreditArm("outcome", PROGRESS, "outcome"),
    "turn-progress": CreditArm("turn", PROGRESS, "outcome-progress"),
}
ORDER = (START, *ARMS)
DONE = """\
    agentrl experiment turn-credit --out {out} --seeds {seeds} \\
      --tokens {tokens} --items {items} --checks {checks}

No GPU, one thread; a seed repeats a training exactly. Policy `{model}`;
`experiments/configs/turn-credit.toml`; {tokens:,} sampled tokens a training, in rounds of
{groups} groups of {size} episodes of at most {turns} turns, and one update each. Trainings: {made}.
"""
MEANING = """\
[Credit](../credit.md) says what the credits compute, here with their default options. Without
rewards before the last turn `turn` is `outcome`, so it has no arm of its own. All arms of a seed
see the same items in the same order, and advantages are normalised per task. *Final* is success in
{attempts} attempts at each of {items} held-out items at temperature {temperature:g}, different
items for each seed; *on the way* is success on {check_items} items during training, the mean of all
checks ({checks}). Process rewards never count as success. Intervals are 95 %, Student's t over
seeds; differences are paired by seed.
"""


def write(out: Path) -> Path:
    """Write the page; return its path. Raises ConfigError without results, or for mixed designs."""
    found = compare_arms(read_study(out, Training))
    write_figures(out / "figures.csv", found)
    picture(out / "learning.svg", found.tasks, partial(_learning, found))
    return write_page(out, TITLE, lines(out, found))


def compare_arms(trainings: Sequence[Training]) -> Comparison[Training]:
    ordered = sorted(trainings, key=lambda each: (place(each.arm, ORDER), each.seed))
    measures: dict[str, Measure[Training]] = {FINAL: final, WAY: on_the_way}
    measures[UPDATES] = lambda each, _: each.points[-1].version if each.points else None
    tasks = sorted({skill.task for each in ordered for skill in each.skills})
    return Comparison(ordered, tasks, measures, base_of)


def base_of(arm: str) -> str:
    return ARMS[arm].base if arm in ARMS else "outcome"


def lines(out: Path, found: Comparison[Training]) -> Iterator[str]:
    yield from verdict(found.differences((FINAL, WAY), found.tasks))
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
        turns="/".join(str(task["max_turns"]) for task in config["tasks"].values()),
        made=found.seeds(),
    )
    yield from describe_tasks(config["tasks"])
    yield from table(
        ["arm", "`trainer.credit`", "`process_rewards.progress`", "compared with"],
        (
            [arm, each.credit, f"{each.progress:g}", each.base if each.base != arm else ""]
            for arm, each in ARMS.items()
        ),
    )
    yield MEANING.format(
        attempts=design.attempts,
        items=design.items,
        checks=design.checks,
        check_items=design.check_items,
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
        ["arm", "final", "final, minus its base", "on the way", "updates"],
        (
            [
                arm,
                share(found.estimate(FINAL, arm, task)),
                difference(found.difference(FINAL, arm, task)),
                share(found.estimate(WAY, arm, task)),
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
