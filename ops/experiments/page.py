"""The sections of the page, in their order: Markdown lines of figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.core.types import CURRENT
from agentrl.ops.experiments.figures import MIXTURE, POLICY, Figures, Trained
from agentrl.ops.experiments.findings import Design
from agentrl.ops.experiments.formatting import (
    chance,
    difference,
    drawn,
    image,
    number,
    reading,
    share,
    table,
)
from agentrl.ops.experiments.verdict import compared, verdict

KS = (1, 4, 16, 64)
DONE = """\
    agentrl experiment cross-policy --out {out}

2 cores, no GPU; one thread. The machine was shared with other work, which changes how long it
took and nothing else: a seed repeats a training exactly. Policy: `{model}` (see its README). Every
arm trains all weights with the settings of `configs/cross-policy.toml` on the same stream of items
until it has sampled {tokens:,} tokens, in rounds of {groups} groups of {size} episodes and one
update each; groups without spread teach nothing, and their tokens count. Seeds: {seeds}.
"""
ARMS = """\
| arm | each step is drawn from |
|---|---|
| start | nothing is trained: the policy that all arms begin with |
| current | the newest checkpoint, always |
| mixed | `refreshed({refresh})` with probability {share:g}, else the newest |
| uniform | the same two with equal chances |
| adaptive | the same two, weighed as in [sampling.md](../sampling.md) |

`refreshed({refresh})` is loaded anew every {refresh} updates: it is less than that behind.
"""
MEASURED = """\
The trained policy alone and the acting mixture are measured on {items} held-out items a task,
other ones for each seed, with {attempts} attempts each at temperature {temperature:g}. Intervals
are 95 %, Student's t over seeds; differences are paired by seed: same items, same order, same
start. A *state* is the text of the environment's last answer, within its item; a *history* is all
its answers so far, within its item: what an agent can know.
"""


def lines(out: Path, found: Figures, design: Design, pictures: Sequence[str]) -> Iterator[str]:
    yield "# Does drawing the policy anew at every step explore?"
    yield ""
    yield from reading(out)
    yield from _verdict(found)
    yield from _design(out, found, design)
    yield from _final(found, pictures, out.name)
    yield from _visited(found)
    yield from _learning(found, pictures, out.name)
    yield from _cost(found)
    yield from _lag(found, pictures, out.name)
    yield from _together(found)


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
    yield from drawn(config["tasks"])
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
        rows = [
            (f"{arm}{'' if acting == POLICY else ', mixture'}", trained.passed[acting])
            for arm, trained in arms.items()
            for acting in (POLICY, MIXTURE)
            if acting in trained.passed and not (acting == MIXTURE and arm in ("start", CURRENT))
        ]
        yield from table(
            ["acts", *(f"pass@{k}" for k in ks)],
            ([name, *(share(curve[k]) for k in ks)] for name, curve in rows),
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


def _visited(found: Figures) -> Iterator[str]:
    yield "## What was visited while training"
    yield ""
    for task, arms in found.trained.items():
        yield f"**{task}**"
        yield ""
        yield from table(
            [
                "arm",
                "distinct states",
                "distinct histories",
                "histories a group",
                "groups with spread",
            ],
            (
                [arm, number(t.states), number(t.seen), number(t.within, 1), share(t.spread)]
                for arm, t in _training(arms)
            ),
        )


def _learning(found: Figures, pictures: Sequence[str], folder: str) -> Iterator[str]:
    yield "## Learning curves"
    yield ""
    yield "Held-out success of the newest checkpoint alone, by tokens sampled in training."
    yield ""
    yield from image("learning.svg", pictures, folder)
    for task, arms in found.trained.items():
        rows = list(_training(arms))
        steps = max((len(t.curve) for _, t in rows), default=0)
        yield from table(
            [task, *(f"check {n}" for n in range(steps))],
            ([arm, *(share(each) for _, each in t.curve)] for arm, t in rows),
        )


def _cost(found: Figures) -> Iterator[str]:
    yield "## What off-policy tokens cost"
    yield ""
    yield (
        "Means over the updates of a training. KL(μ ‖ π) of lagged tokens is the trainer's own "
        "estimate (k3), in nats a token; effective sample size that of the weights π/μ of all "
        "tokens, as a share of them."
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
        "One longer training of `current` a seed; trajectories of a version, scored by the version "
        "that many updates later. KL is exact over the vocabulary at every sampled token."
    )
    yield ""
    yield from image("lag.svg", pictures, folder)
    for task, lags in found.lags.items():
        yield from table(
            [
                f"{task}: lag",
                "KL(μ ‖ π)",
                "by version",
                "effective sample size",
                "largest weight",
                "pairs",
                "seeds",
            ],
            (
                [
                    str(lag),
                    number(each.divergence, 4),
                    f"{each.span[0]:.3f} – {each.span[1]:.3f}",
                    number(each.effective, 3),
                    f"{each.largest:.3g}",
                    str(each.pairs),
                    str(each.divergence.n),
                ]
                for lag, each in lags.items()
            ),
        )


def _together(found: Figures) -> Iterator[str]:
    if not found.together:
        return
    yield "## Checkpoints far apart, acting together"
    yield ""
    yield (
        "The last policy of those longer trainings and one so many updates older, each drawn for "
        "half of the steps; pass@k on held-out items, and its difference from the last one alone."
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
        yield from table(
            [f"{task}: less alone", *(f"pass@{k}" for k in ks)],
            (
                [str(lag), *(difference(each.versus.get(k)) for k in ks)]
                for lag, each in lags.items()
                if lag
            ),
        )


def _training(arms: Mapping[str, Trained]) -> Iterator[tuple[str, Trained]]:
    return ((arm, trained) for arm, trained in arms.items() if trained.states is not None)
