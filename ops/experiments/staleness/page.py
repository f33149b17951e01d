"""The sections of the page, in their order: Markdown lines of figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.ops.experiments.findings import Design
from agentrl.ops.experiments.formatting import (
    difference,
    drawn,
    image,
    number,
    reading,
    share,
    table,
)
from agentrl.ops.experiments.staleness.figures import Figures

DONE = """\
    agentrl experiment staleness --out {out}

2 cores, no GPU; one thread. Policy: `{model}` (see its README); `configs/staleness.toml`;
{updates} updates a training, of {groups} groups with spread of {size} episodes each. Seeds:
{seeds}.

**Time is counted, not measured**: other work shared the machine. Episodes, tokens, updates and
weights are real, in one thread; a clock says when each would have come about with one device for
the engine and one for the trainer. Its costs are processor times of this machine, fitted before
the first training (`costs.json`), in milliseconds:

| engine: a pass | a sampled token | a token read | a load | trainer: an update | a token trained |
|---|---|---|---|---|---|
| {step:.3f} | {sampled:.3f} | {prompt:.3f} | {load:.1f} | {update:.1f} | {token:.3f} |

All open episodes ask at once, and the engine answers all before they go on: with more of them
open a pass is worth more. Groups are admitted while open ones number fewer than (bound + 1) ·
{groups}; those that train are open until their update is committed. An update begins when the
trainer is free and {groups} groups with spread are ready, the oldest first.

| arm | groups ahead | who acts |
|---|---|---|
| bound-b | `dispatch.max_staleness` = b | the newest checkpoint, from the turn after its commit |
| interval-k | the bound is {bound} | the checkpoint of every k-th update, `refreshed(k)` |

bound-{bound} is the interval of 1. *Throughput*: tokens trained a second of the clock. *Lag*:
updates between the policy that sampled a token and the one that was trained with it. *Unused*:
sampled tokens of groups without spread, of groups that were too old, and of those still open at
the end. *Final* is success in {attempts} attempts at each of {items} held-out items a task at
temperature {temperature:g}, other items for each seed. Intervals are 95 %, Student's t over
seeds; differences are paired by seed.
"""


def lines(out: Path, found: Figures, design: Design, pictures: Sequence[str]) -> Iterator[str]:
    yield "# What do running ahead and re-loading rarely cost and bring?"
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
    yield from drawn(config["tasks"])


def _pace(found: Figures) -> Iterator[str]:
    heads = [
        *("arm", "seconds", "tokens trained a second", "as a multiple", "engine busy"),
        *("trainer busy", "lag", "oldest", "effective sample size", "unused", "stale", "loads"),
    ]
    yield from table(
        heads,
        (
            [
                arm,
                number(each.seconds, 1),
                number(each.throughput),
                number(each.versus, 2),
                share(each.engine),
                share(each.trainer),
                number(each.lag, 2),
                str(each.oldest),
                number(each.effective, 3),
                share(each.unused),
                number(each.stale, 1),
                number(each.loads),
            ]
            for arm, each in found.pace.items()
        ),
    )


def _final(found: Figures) -> Iterator[str]:
    for task, arms in found.learned.items():
        yield from table(
            [task, "final", "less", "difference"],
            (
                [
                    arm,
                    share(each.final),
                    found.base[arm] if each.versus else "–",
                    difference(each.versus),
                ]
                for arm, each in arms.items()
            ),
        )
