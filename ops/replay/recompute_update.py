"""Recomputes a stored update with a configuration.

bodies ─▶ verdict of each group ─▶ assemble ─▶ (scored by the checkpoint it began from) ─▶ by task

It uses the same functions of trainer/ as the trainer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl.core.config.config import Config
from agentrl.core.types import GroupState
from agentrl.ops.processes.trainer import bounds
from agentrl.trainer.algorithm import presets
from agentrl.trainer.algorithm.alarms import group_metrics
from agentrl.trainer.algorithm.metrics import CLIPPED, TokenRecord, measure, reward_stds
from agentrl.trainer.algorithm.presets import Settings
from agentrl.trainer.batch import Batch, Bools, TrainableGroup, assemble_batch
from agentrl.trainer.group_selection import CLOSED_AS, classify_group, select_varied

if TYPE_CHECKING:
    from agentrl.trainer.model.scoring import Scorer

ALL = ""  # the row of the whole update
OF_POLICY = ("loss", "entropy", CLIPPED, "max_ratio", "effective_sample_size", "kl")
MISMATCH = "mismatch_"


@dataclass(frozen=True, slots=True)
class SeenGroups:
    """The trainer's input to the update from `version`. `forks`: see `is_too_old`."""

    version: int
    groups: Sequence[TrainableGroup]
    forks: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """Figures of a task or of the whole update. The last three are None without a policy.

    `share`: of the loss. `advantage`: mean |Ã| of the loss tokens. `effective_sample_size`: of the
    token weights in the loss, as a share of the tokens. `weighted`: share of tokens whose weight
    was changed by a bound. `clipped`: share of tokens without a gradient.
    """

    groups: int
    filtered: int
    stale: int
    trajectories: int
    loss_tokens: int
    share: float
    advantage: float
    effective_sample_size: float | None
    weighted: float | None
    clipped: float | None


@dataclass(frozen=True, slots=True)
class RecomputedUpdate:
    """An update under one configuration. `metrics`: named as in `updates.metrics`."""

    rows: Mapping[str, TaskRow]
    metrics: Mapping[str, float]


def recompute_update(seen: SeenGroups, config: Config, scorer: "Scorer | None") -> RecomputedUpdate:
    """Recompute an update. Raises ConfigError for an invalid configuration."""
    settings = presets.resolve_settings(config.trainer)
    limits = bounds(config, settings)
    reasons = [classify_group(group, seen.version, limits, seen.forks) for group in seen.groups]
    verdicts = list(zip(seen.groups, reasons, strict=True))
    ready = [group for group, reason in verdicts if reason is None]
    taken = ready[: limits.max_groups]
    selected = select_varied(taken, limits)
    batch = assemble_batch(selected.trained, settings)
    recorded = scorer.score(batch, settings) if scorer and selected.trained else None
    closed = [(group, CLOSED_AS[reason]) for group, reason in verdicts if reason is not None]
    with_spread = _count([*closed, *((each, GroupState.READY) for each in taken)])
    closed += [(each, GroupState.FILTERED) for each in selected.left_out]
    counts = _count([*closed, *((each, GroupState.READY) for each in selected.trained)])
    metrics = measure(batch, recorded or TokenRecord.empty(batch.tokens.size))
    if recorded is None:
        metrics = {name: value for name, value in metrics.items() if not of_policy(name)}
    if settings.optimizer_steps > 1:  # the ratios of later steps are not recomputed
        metrics = {name: each for name, each in metrics.items() if not name.endswith(CLIPPED)}
    rows = {
        task: _row(batch, recorded, settings, counts.get(task, {}), task)
        for task in sorted({group.task for group in seen.groups})
    }
    total = {
        state: sum(by_state.get(state, 0) for by_state in counts.values()) for state in GroupState
    }
    rows[ALL] = _row(batch, recorded, settings, total, ALL)
    metrics |= reward_stds(taken, limits.abnormal_reward)
    return RecomputedUpdate(rows, metrics | group_metrics(with_spread, metrics))


def of_policy(name: str) -> bool:
    """Return whether a metric depends on the policy, so that it is unknown without its weights."""
    bare = name.rpartition("/")[2]
    return bare in OF_POLICY or bare.startswith((MISMATCH, "effective_sample_size"))


def _count(
    verdicts: Sequence[tuple[TrainableGroup, GroupState]],
) -> dict[str, dict[GroupState, int]]:
    """Count groups by task and state."""
    counts: dict[str, dict[GroupState, int]] = {}
    for group, state in verdicts:
        by_state = counts.setdefault(group.task, {})
        by_state[state] = by_state.get(state, 0) + 1
    return counts


def _row(
    batch: Batch,
    recorded: TokenRecord | None,
    settings: Settings,
    counts: Mapping[GroupState, int],
    task: str,
) -> TaskRow:
    tokens = batch.loss_mask.copy()
    members = np.ones(batch.lengths.size, np.bool_)
    if task != ALL:
        index = batch.tasks.index(task) if task in batch.tasks else -1
        tokens &= batch.token_tasks == index
        members = batch.task_ids == index
    scored = _measure_mismatch(batch, recorded, settings, tokens) if recorded is not None else None
    return TaskRow(
        groups=counts.get(GroupState.READY, 0),
        filtered=counts.get(GroupState.FILTERED, 0),
        stale=counts.get(GroupState.STALE, 0),
        trajectories=int(members.sum()),
        loss_tokens=int(tokens.sum()),
        share=float(batch.shares[tokens].sum(dtype=np.float64)),
        advantage=_mean(np.abs(batch.advantages[tokens])),
        effective_sample_size=scored[0] if scored else None,
        weighted=scored[1] if scored else None,
        clipped=scored[2] if scored and settings.optimizer_steps == 1 else None,
    )


def _measure_mismatch(
    batch: Batch, recorded: TokenRecord, settings: Settings, tokens: Bools
) -> tuple[float, float, float]:
    """Return (Σw)² / NΣw² of the weights, the share changed by a bound, and the clipped share.

    w: π_prox/μ bounded by `importance`; with `old = "behaviour"` the ratio π/μ itself.
    """
    import torch

    from agentrl.trainer.algorithm.losses.importance import weights
    from agentrl.trainer.algorithm.losses.loss_interface import ratio

    current = torch.from_numpy(recorded.logprobs[tokens])
    behaviour = torch.from_numpy(batch.behaviour[tokens])
    raw = ratio(current, behaviour)
    used = raw if settings.old == "behaviour" else weights(current, behaviour, settings.importance)
    changed = used != raw if settings.importance.kind != "none" else torch.zeros_like(used)
    values, clipped = used.double().numpy(), recorded.clipped[tokens]
    square = _mean(values**2)
    return _mean(values) ** 2 / square if square else 0.0, _mean(changed.numpy()), _mean(clipped)


def _mean(values: NDArray[Any]) -> float:
    return float(np.mean(values, dtype=np.float64)) if values.size else 0.0
