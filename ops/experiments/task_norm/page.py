"""The sections of the report in Markdown, in order."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.core.statistics import Estimate
from agentrl.ops.experiments.findings import Design
from agentrl.ops.experiments.formatting import (
    chance,
    difference,
    image,
    reading,
    share,
    source,
    table,
)
from agentrl.ops.experiments.task_norm.figures import BASE, MEAN, Part

DONE = """\
    agentrl experiment task-norm --out {out} --parts {parts}

2 cores, no GPU, one thread; a seed repeats a training exactly.

| arm | advantages | loss |
|---|---|---|
| start | the policy that all arms begin with, untrained | |
| none | reward minus the group's mean | all tokens have the same weight |
| task | also normalised over the task's loss tokens | the same |
| weighted | as `task` | tokens have the task's weight (tables below) |
| environment | normalised over the task's trajectories, each once | as `task` |

The deviation counts as at least 0.1 ([algorithms.md](../algorithms.md)). An arm trains all weights
until it has sampled its tokens, including those of groups without spread. All arms of a seed see
the same items in the same order. *Final* is success in {attempts} attempts at each of {items}
held-out items a task at temperature {temperature:g}, different items for each seed; *on the way* is
the mean of {checks} checks during training on {check_items} items. *Mean* is over the tasks.
Intervals are 95 %, Student's t over seeds; differences are paired by seed.

*Gradient share*: at every update whose version is a multiple of {gradients}, each task's tokens are
also passed backward alone; the share is the norm of that gradient over the sum of all tasks' norms.
"""
ABOUT = """\
Policy `{model}`; `configs/task-norm-{part}.toml`; {tokens:,} tokens a training, in rounds
of {groups} groups of {size} episodes and one update each. Seeds: {seeds}.
"""
Parts = Mapping[str, tuple[Design, Part]]


def lines(out: Path, parts: Parts, pictures: Sequence[str]) -> Iterator[str]:
    yield "# Does normalising advantages in each task help?"
    yield ""
    yield from reading(out)
    yield from _verdict(parts)
    design, _ = next(iter(parts.values()))
    yield "## What was done"
    yield ""
    yield DONE.format(
        out=out,
        parts=",".join(parts),
        attempts=design.attempts,
        items=design.items,
        checks=design.checks,
        check_items=design.check_items,
        gradients=design.gradients,
        temperature=design.config["sampling"]["temperature"],
    )
    for name, (own, found) in parts.items():
        yield f"## Part `{name}`"
        yield ""
        yield from _about(name, own, found)
        yield from _final(found)
        yield "Held-out success by tokens sampled in training:"
        yield ""
        yield from image(f"{name}-learning.svg", pictures, out.name)
        yield "Gradient share by task:"
        yield ""
        yield from image(f"{name}-gradient.svg", pictures, out.name)
        yield from _gradient(found)
    yield from source(out.name)


def _verdict(parts: Parts) -> Iterator[str]:
    yield "## What the intervals show"
    yield ""
    every: list[Estimate] = []
    equal: list[str] = []
    for name, (_, found) in parts.items():
        for task, arms in found.learned.items():
            for arm, learned in arms.items():
                if arm in (BASE, "start"):
                    continue
                named = {"final": learned.versus_final, "on the way": learned.versus_way}
                known = {what: each for what, each in named.items() if each is not None}
                every += known.values()
                shown = [f"{what} {difference(each)}" for what, each in known.items() if each.sign]
                if any(each.n < 2 for each in known.values()):
                    shown = ["one seed shows nothing"]
                if shown:
                    yield f"- **{name}, {task}, {arm}** against `{BASE}`: {'; '.join(shown)}."
                else:
                    equal.append(f"{name}, {task}, {arm}")
    if equal:
        yield f"- No difference from `{BASE}` shown: {'; '.join(equal)}."
    yield ""
    yield chance(every)
    yield ""


def _about(name: str, design: Design, found: Part) -> Iterator[str]:
    config: Mapping[str, Any] = design.config
    yield ABOUT.format(
        part=name,
        model=config["model"]["path"],
        tokens=design.tokens,
        groups=config["dispatch"]["groups_per_update"],
        size=config["dispatch"]["group_size"],
        seeds="; ".join(f"{arm} {len(seeds)}" for arm, seeds in found.seeds.items()),
    )
    weights = config["trainer"]["task_weights"]
    rows = []
    for task, section in config["tasks"].items():
        options = dict(section["options"])
        scale = options.pop("reward_scale", 1.0)
        items = ", ".join(f"{key} {value}" for key, value in options.items())
        rows.append([task, items, f"{scale:g}", f"{weights.get(task, 1.0):g}"])
    heads = ["task", "generated items", "reward of a success", "weight in `weighted`"]
    yield from table(heads, rows)


def _final(found: Part) -> Iterator[str]:
    heads = ["arm", *(f"final, {task}" for task in found.learned), f"{MEAN} minus `{BASE}`"]
    yield from table(
        heads,
        (
            [
                arm,
                *(share(arms[arm].final) for arms in found.learned.values()),
                difference(mean.versus_final),
            ]
            for arm, mean in found.learned[MEAN].items()
        ),
    )


def _gradient(found: Part) -> Iterator[str]:
    tasks = [task for task in found.learned if task != MEAN]
    yield from table(
        ["arm", *tasks],
        (
            [arm, *(share(found.learned[task][arm].gradient) for task in tasks)]
            for arm in found.spent
        ),
    )
