"""The groups of one update as flat arrays of tokens.

groups ─▶ rewards of turns ─▶ advantages of tokens ─▶ normalised in each task ─▶ Batch
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.core.errors import ConfigError
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import CURRENT, SOLVED
from agentrl.trainer.algorithm.advantages import Floats, task_normalise
from agentrl.trainer.algorithm.presets import Settings
from agentrl.trainer.algorithm.token_weights import shares
from agentrl.trainer.turns import branch_rewards, shaped_reward, token_advantages, trained_reward

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

FEWEST_TRAJECTORIES = 2  # of a task, to normalise over them


@dataclass(frozen=True, slots=True)
class TrainableGroup:
    """The finished members of a group; all belong to `task`.

    `advantages`: of each member's loss tokens, after assembly; None for a member without any.
    """

    group_id: str
    task: str
    members: tuple[Trajectory, ...]
    advantages: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class TakenGroups:
    """The groups that an update takes. `left_out`: closed with it; they vary too little."""

    trained: Sequence[TrainableGroup]
    left_out: Sequence[TrainableGroup] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The M trajectories of one update, packed end to end: N tokens.

    Per token [N]: `tokens`, `loss_mask` (sampled by a trainable policy, never the first token of a
    branch), `behaviour` log-probabilities, `temperature` (1 where it was 0), `advantages`, `fresh`
    (sampled by the track `current`), `shares` of the loss (they sum to 1). Per trajectory [M]:
    `lengths`, `task_ids` into `tasks`, `rewards` as trained, `successes`. `unnormalised`: tasks
    with too few tokens or trajectories for normalisation. `branches`: [B] lengths of all branches,
    in order; empty if no trajectory has several. `teacher_logprobs`, `teacher_weights`: [N] scores
    of teachers, and their weights, 0 where no teacher scored; empty without teachers. `proximal`:
    [N] log-probabilities of the policy before the update; empty at the first optimizer step.
    """

    tokens: Ints
    loss_mask: Bools
    behaviour: Floats
    temperature: Floats
    advantages: Floats
    fresh: Bools
    shares: Floats
    lengths: Ints
    task_ids: Ints
    tasks: tuple[str, ...]
    rewards: Floats
    successes: Bools
    unnormalised: frozenset[str]
    branches: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    teacher_logprobs: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    teacher_weights: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    proximal: Floats = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def sequences(self) -> Ints:
        """Return the lengths of what is attended to as one: branches, or whole trajectories."""
        return self.branches if self.branches.size else self.lengths

    @property
    def token_tasks(self) -> Ints:
        """Return [N] indices into `tasks`."""
        return np.repeat(self.task_ids, self.lengths)


def has_spread(group: TrainableGroup, abnormal_reward: float | None = None) -> bool:
    """Return whether the rewards of members, or of their branches, differ, without penalties.

    Otherwise there is no gradient.
    """
    return are_different(group_rewards(group, abnormal_reward))


def are_different(rewards: Sequence[float]) -> bool:
    """Return whether rewards differ by more than the rounding of their sums: 0.1 + 0.2 is 0.3."""
    least, most = min(rewards, default=0.0), max(rewards, default=0.0)
    return not math.isclose(least, most, rel_tol=1e-9, abs_tol=1e-12)


def split_by_variance(
    groups: Sequence[TrainableGroup],
    share: float,
    abnormal_reward: float | None = None,
    taught_tasks: Collection[str] = (),
) -> TakenGroups:
    """Choose the groups to train on (RAGEN, arXiv:2504.20073); all stay in order.

    Of each task, the groups whose rewards have the highest variance stay: `share` of them, rounded
    up; of equal ones the first. All groups of `taught_tasks` stay: teachers need no spread.
    """
    kept: set[str] = set()
    for task in {group.task for group in groups}:
        own = [group for group in groups if group.task == task]
        if task not in taught_tasks:
            count = math.ceil(round(share * len(own), 6))  # 0.3 · 10 exceeds 3 by a rounding error
            own.sort(
                key=lambda group: -round(float(np.var(group_rewards(group, abnormal_reward))), 9)
            )
            own = own[:count]
        kept.update(group.group_id for group in own)
    return TakenGroups(
        [group for group in groups if group.group_id in kept],
        [group for group in groups if group.group_id not in kept],
    )


def group_rewards(group: TrainableGroup, abnormal_reward: float | None) -> list[float]:
    """Return the rewards of members, or of their branches, without penalties."""
    return [
        reward
        for member in group.members
        for reward in branch_rewards(member) or [shaped_reward(member, abnormal_reward)]
    ]


def assemble_batch(groups: Sequence[TrainableGroup], settings: Settings) -> Batch:
    """Assemble the Batch of groups, in order. Groups need not have spread or equal sizes.

    Raises ConfigError for a trajectory of several policies with a sequence-level loss.
    """
    members = [member for group in groups for member in group.members]
    _refuse_mixed(members, settings)
    tasks = tuple(sorted({group.task for group in groups}))
    rewards = [[trained_reward(m, settings) for m in g.members] for g in groups]
    advantages = [each for group in groups for each in token_advantages(group.members, settings)]
    lengths = np.array([len(member) for member in members], np.int64)
    task_ids = np.array([tasks.index(g.task) for g in groups for _ in g.members], np.int64)
    group_ids = np.array([n for n, g in enumerate(groups) for _ in g.members], np.int64)
    weights = np.array([settings.task_weights.get(task, 1.0) for task in tasks], np.float32)
    masks = [_trainable_mask(member) for member in members]
    loss_mask = _concatenate(masks, np.bool_)
    per_token, skipped = _normalise(advantages, task_ids, masks, settings)
    if not settings.rewards:
        per_token = np.zeros_like(per_token)
    fresh = [_of_policy(m, [each.track == CURRENT for each in m.policies]) for m in members]
    branches = [length for member in members for length in member.branch_lengths()]
    return Batch(
        tokens=_concatenate([member.tokens() for member in members], np.int64),
        loss_mask=loss_mask,
        behaviour=_concatenate([member.behaviour() for member in members], np.float32),
        temperature=_concatenate([_temperature(member) for member in members], np.float32),
        advantages=per_token,
        fresh=_concatenate(fresh, np.bool_),
        shares=shares(
            loss_mask,
            np.repeat(group_ids, lengths),
            np.repeat(weights[task_ids], lengths),
            settings.aggregate,
        ),
        lengths=lengths,
        task_ids=task_ids,
        tasks=tasks,
        rewards=_concatenate(rewards, np.float32),
        successes=np.array([member.score >= SOLVED for member in members], np.bool_),
        unnormalised=frozenset(tasks[task] for task in skipped),
        branches=np.array(branches if len(branches) > len(members) else [], np.int64),
    )


def with_advantages(groups: Sequence[TrainableGroup], batch: Batch) -> list[TrainableGroup]:
    """Return the groups with the mean advantage of each member's loss tokens."""
    ends = np.cumsum(batch.lengths)
    means = iter(
        float(batch.advantages[start:end][mask].mean()) if mask.any() else None
        for start, end in zip(ends - batch.lengths, ends, strict=True)
        for mask in [batch.loss_mask[start:end]]
    )
    return [replace(group, advantages=tuple(islice(means, len(group.members)))) for group in groups]


def _normalise(
    advantages: Sequence[Floats], task_ids: Ints, masks: Sequence[Bools], settings: Settings
) -> tuple[Floats, frozenset[int]]:
    """Return [N] token advantages, and the tasks that were not normalised.

    advantages: [T] of each trajectory. task_ids: [M]. `task`: all loss tokens have the same weight.
    `environment`: all trajectories with loss tokens do, long or short.
    """
    per_token = _concatenate(advantages, np.float32)
    if settings.normalise == "none":
        return per_token, frozenset()
    weights, fewest = [mask.astype(np.float64) for mask in masks], settings.task_norm_min_tokens
    if settings.normalise == "environment":
        weights, fewest = [own / max(own.sum(), 1.0) for own in weights], FEWEST_TRAJECTORIES
    lengths = [mask.size for mask in masks]
    return task_normalise(
        per_token,
        np.repeat(task_ids, lengths),
        _concatenate(weights, np.float64),
        fewest,
        settings.norm_floor,
    )


def _refuse_mixed(members: Sequence[Trajectory], settings: Settings) -> None:
    """Refuse trajectories of several policies. A policy on two tracks is one."""
    for member in members if settings.needs_one_policy else ():
        acted = set(member.sampled_by()[_trainable_mask(member)].tolist())
        if len({member.policies[index].checkpoint_id for index in acted}) > 1:
            raise several_policies(settings, member.episode_id)


def several_policies(settings: Settings, episode_id: str) -> ConfigError:
    """Return the error of an episode that the loss cannot learn from."""
    return ConfigError(
        f'trainer.loss = "{settings.loss}": episode {episode_id} has several policies',
        hint="set trainer.mixed_sequences = true",
    )


def _trainable_mask(trajectory: Trajectory) -> Bools:
    mask = trajectory.mask().astype(np.bool_)
    mask &= _of_policy(trajectory, [policy.trainable for policy in trajectory.policies])
    begins = [step.context for step in trajectory.steps if step.context < mask.size]
    mask[[0, *begins] if mask.size else []] = False  # nothing predicts a first token
    return mask


def _of_policy(trajectory: Trajectory, values: list[bool]) -> Bools:
    """Return [T]: for each token the value of the policy that sampled it; False without one."""
    table = np.array(values or [False], np.bool_)
    return table[trajectory.sampled_by()] & trajectory.mask().astype(np.bool_)


def _temperature(trajectory: Trajectory) -> Floats:
    temperature = np.ones(len(trajectory), np.float32)
    for step in trajectory.steps:
        temperature[step.start : step.end] = step.temperature or 1.0
    return temperature


def _concatenate(parts: Sequence[object], dtype: type) -> NDArray[Any]:
    return np.concatenate([np.asarray(part, dtype) for part in parts] or [np.zeros(0, dtype)])
