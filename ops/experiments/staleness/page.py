"""The sections of the report in Markdown, in order."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.ops.experiments.findings import Design
from agentrl.ops.experiments.formatting import (
    describe_tasks,
    difference,
    image,
    number,
    reading,
    share,
    source,
    table,
)
from agentrl.ops.experiments.staleness.figures import Figures

DONE = """\
    agentrl experiment staleness --out {out}

2 cores, no GPU, one thread. Policy: `{model}`; `configs/staleness.toml`; {updates}
updates a training, each of {groups} groups with spread of {size} episodes. Seeds:
{seeds}.

**Time is counted, not measured**. Episodes, tokens, updates and weights are real; a clock counts
when each would happen with one device for the engine and one for the trainer. Its costs are
processor times of this machine, fitted once (`costs.json`), in milliseconds:

| engine: a pass | a sampled token | a token read | a load | trainer: an update | a token trained |
|---|---|---|---|---|---|
| {step:.3f} | {sampled:.3f} | {prompt:.3f} | {load:.1f} | {update:.1f} | {token:.3f} |

The engine answers all open episodes in one pass. Groups are opened while fewer than (bound + 1) ·
{groups} are open. An update begins when the trainer is free and {groups} groups with spread are
ready.

| arm | groups ahead | who acts |
|---|---|---|
| bound-b | `dispatch.max_staleness` = b | the newest checkpoint |
| interval-k | the bound is {bound} | the checkpoint of every k-th update, `refreshed(k)` |

bound-{bound} is also the interval of 1. *Throughput*: tokens trained a second of the clock. *Lag*:
updates between sampling a token and training it. *Unused*: share of sampled tokens that were never
trained (no spread, too old, or still open at the end). *Final* is success in {attempts} attempts at
each of {items} held-out items a task at temperature {temperature:g}, different items for each seed.
Intervals are 95 %, Student's t over seeds; differences are paired by seed.
"""


def lines(out: Path, found: Figures, design: Design, pictures: Sequence[str]) -> Iterator[str]:
    yield "# What do running ahead and rare reloading cost and gain?"
    yield ""
    yield from reading(out)
    yield from _verdict(found)
    yield from _design(out, found, design)
    yield "## Throughput"
    yield ""
    yield from image("throughput.svg", pictures, out.name)
    yield from _pace(found)
    yield "## Success"
    yield ""
    yield from image("learning.svg", pictures, out.name)
    yield from _final(found)
    yield from source(out.name)


def _verdict(found: Figures) -> Iterator[str]:
    yield "## What the intervals show"
    yield ""
    for arm, base in found.base.items():
        pairs = {task: arms[arm].versus for task, arms in found.learned.items()}
        known = {task: each for task, each in pairs.items() if each is not None}
        if not known:
            continue
        shown = [f"{task} {difference(each)}" for task, each in known.items() if each.sign]
        text = "; ".join(shown) or "no difference of final success shown"
        if min(each.n for each in known.values()) < 2:
            text = "one seed shows nothing of success"
        faster = found.pace[arm].versus
        yield f"- **{arm}** against `{base}`: {text}; throughput × {number(faster, 2)}."
    yield ""


def _design(out: Path, found: Figures, design: Design) -> Iterator[str]:
    config: Mapping[str, Any] = design.config
    yield "## What was done"
    yield ""
    yield DONE.format(
        out=out,
        model=config["model"]["path"],
        updates=design.updates,
        groups=config["dispatch"]["groups_per_update"],
        size=config["dispatch"]["group_size"],
        seeds="; ".join(f"{arm} {len(seeds)}" for arm, seeds in found.seeds.items()),
        bound=config["dispatch"]["max_staleness"],
        attempts=design.attempts,
        items=design.items,
        temperature=config["sampling"]["temperature"],
        **{name: 1000.0 * seconds for name, seconds in design.costs.items()},
    )
    yield from describe_tasks(config["tasks"])


def _pace(found: Figures) -> Iterator[str]:
    heads = [
        *("arm", "tokens trained a second", "as a multiple", "engine busy", "trainer busy", "lag"),
        *("effective sample size", "unused"),
    ]
    yield from table(
        heads,
        (
            [
                arm,
                number(each.throughput),
                number(each.versus, 2),
                share(each.engine),
                share(each.trainer),
                number(each.lag, 2),
                number(each.effective, 3),
                share(each.unused),
            ]
            for arm, each in found.pace.items()
        ),
    )


def _final(found: Figures) -> Iterator[str]:
    tasks = list(found.learned)
    heads = ["arm", *(f"final, {task}" for task in tasks), "minus", f"difference, {tasks[-1]}"]
    yield from table(
        heads,
        (
            [
                arm,
                *(share(found.learned[task][arm].final) for task in tasks),
                found.base[arm] if each.versus else "–",
                difference(each.versus),
            ]
            for arm, each in found.learned[tasks[-1]].items()
        ),
    )
