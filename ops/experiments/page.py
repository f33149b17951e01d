"""The sections of the report in Markdown, in order."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.ops.experiments.figures import POLICY, Figures
from agentrl.ops.experiments.findings import Design
from agentrl.ops.experiments.formatting import (
    chance,
    describe_tasks,
    difference,
    image,
    number,
    reading,
    share,
    source,
    table,
)
from agentrl.ops.experiments.verdict import compared, verdict

KS = (1, 4, 16, 64)
DONE = """\
    agentrl experiment cross-policy --out {out}

2 cores, no GPU, one thread; a seed repeats a training exactly. Policy: `{model}`. Every arm trains
all weights (`configs/cross-policy.toml`) on the same items until it has sampled {tokens:,} tokens,
in rounds of {groups} groups of {size} episodes and one update each. Tokens of groups without spread
count. Seeds: {seeds}.
"""
ARMS = """\
| arm | each step is drawn from |
|---|---|
| start | the policy that all arms begin with, untrained |
| current | the newest checkpoint, always |
| mixed | `refreshed({refresh})` with probability {share:g}, else the newest |
| uniform | the same two with equal chances |
| adaptive | the same two, weighted as in [sampling.md](../sampling.md) |

`refreshed({refresh})` is reloaded every {refresh} updates, so it is at most {refresh} behind.
"""
MEASURED = """\
The trained policy is measured on {items} held-out items a task, different ones for each seed, with
{attempts} attempts each at temperature {temperature:g}. Intervals are 95 %, Student's t over seeds;
differences are paired by seed (same items, order and start). A *state* is the environment's last
answer on an item, a *history* all its answers so far.
"""


def lines(out: Path, found: Figures, design: Design, pictures: Sequence[str]) -> Iterator[str]:
    yield "# Does drawing the policy at every step explore?"
    yield ""
    yield from reading(out)
    yield from _verdict(found)
    yield from _design(out, found, design)
    yield from _final(found, pictures, out.name)
    yield from _learning(pictures, out.name)
    yield from _cost(found)
    yield from _lag(found, pictures, out.name)
    yield from _together(found)
    yield from source(out.name)


def _verdict(found: Figures) -> Iterator[str]:
    yield "## What the intervals show"
    yield ""
    yield from verdict(found)
    yield ""
    yield chance(compared(found))
    yield ""


def _design(out: Path, found: Figures, design: Design) -> Iterator[str]:
    config: Mapping[str, Any] = design.config
    seeds = "; ".join(f"{arm} {len(each)}" for arm, each in found.seeds.items())
    yield "## What was done"
    yield ""
    yield DONE.format(
        out=out,
        model=config["model"]["path"],
        tokens=design.tokens,
        groups=config["dispatch"]["groups_per_update"],
        size=config["dispatch"]["group_size"],
        seeds=seeds,
    )
    yield from describe_tasks(config["tasks"])
    yield ARMS.format(refresh=design.refresh, share=config["sampling"]["stale_share"])
    yield MEASURED.format(
        items=design.items,
        attempts=design.attempts,
        temperature=config["sampling"]["temperature"],
    )


def _final(found: Figures, pictures: Sequence[str], folder: str) -> Iterator[str]:
    yield "## pass@k after training"
    yield ""
    yield from image("pass-at-k.svg", pictures, folder)
    for task, arms in found.trained.items():
        ks = [k for k in KS if k in next(iter(arms.values())).passed[POLICY]]
        yield f"**{task}**"
        yield ""
        yield from table(
            ["arm", *(f"pass@{k}" for k in ks)],
            ([arm, *(share(each.passed[POLICY][k]) for k in ks)] for arm, each in arms.items()),
        )
        compared = {a: t for a, t in arms.items() if t.versus and a != "start"}
        if compared:
            names = list(next(iter(compared.values())).versus)
            yield from table(
                ["less `current`", *names],
                (
                    [arm, *(difference(t.versus.get(n)) for n in names)]
                    for arm, t in compared.items()
                ),
            )


def _learning(pictures: Sequence[str], folder: str) -> Iterator[str]:
    yield "## Learning curves"
    yield ""
    yield "Held-out success of the newest checkpoint alone, by tokens sampled in training."
    yield ""
    yield from image("learning.svg", pictures, folder)


def _cost(found: Figures) -> Iterator[str]:
    yield "## What off-policy tokens cost"
    yield ""
    yield (
        "Means over the updates of a training. KL(μ ‖ π) of lagged tokens is the trainer's "
        "estimate (k3), nats a token; the effective sample size of the weights π/μ is a share of "
        "all tokens."
    )
    yield ""
    yield from table(
        [
            "arm",
            "lagged tokens",
            "KL of lagged",
            "effective sample size",
            "updates",
            "tokens",
            "episodes",
        ],
        (
            [
                arm,
                share(each.lagged),
                number(each.divergence, 4),
                number(each.effective, 4),
                number(each.updates, 1),
                number(each.tokens),
                number(each.episodes),
            ]
            for arm, each in found.costs.items()
        ),
    )


def _lag(found: Figures, pictures: Sequence[str], folder: str) -> Iterator[str]:
    if not found.lags:
        return
    yield "## How fast a checkpoint ages"
    yield ""
    yield (
        "One longer training of `current` per seed: trajectories of a version, scored by the "
        "version `lag` updates later. KL is exact over the vocabulary at every sampled token."
    )
    yield ""
    yield from image("lag.svg", pictures, folder)


def _together(found: Figures) -> Iterator[str]:
    if not found.together:
        return
    yield "## Checkpoints far apart, acting together"
    yield ""
    yield (
        "The last policy of those trainings and one `lag` updates older, each drawn for half of "
        "the steps: pass@k on held-out items."
    )
    yield ""
    for task, lags in found.together.items():
        ks = [k for k in KS if k in lags[0].passed]
        yield from table(
            [f"{task}: lag", *(f"pass@{k}" for k in ks), "histories an item"],
            (
                [
                    "alone" if lag == 0 else str(lag),
                    *(share(each.passed[k]) for k in ks),
                    number(each.histories, 1),
                ]
                for lag, each in lags.items()
            ),
        )
