"""Copies one stored group into another run, with its own or with new rewards.

bodies of the group ─▶ reward function ─▶ bodies with the copy's ids ─▶ rows (ready), and in memory
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentrl.broker.messages import EpisodeFinished, encode
from agentrl.core.errors import ConfigError, MessageError, in_words
from agentrl.core.trajectory import LARGEST, Trajectory, read_number
from agentrl.core.trajectory_body import body_of, decode_as_received
from agentrl.db.models.episodes import Group
from agentrl.db.store import Store
from agentrl.db.transitions.trajectories import bodies, group_copies
from agentrl.db.transitions.trajectories.group_copies import GroupCopy
from agentrl.trainer.batch import TrainableGroup
from agentrl.workers.recorder import body_row, step_rows


@dataclass(frozen=True, slots=True)
class Reward:
    """A function that gives an episode's reward, a reward for each step, or None: as recorded."""

    name: str
    function: Callable[[Trajectory], Any]


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """Where a copy goes: a run, the batch of the history, how often it was rolled back there."""

    run_id: str
    batch: int
    round: int = 0


@dataclass(frozen=True, slots=True)
class CopiedGroup:
    """A group as stored, and its copy, whose members are in the same order. `rows`: to insert."""

    stored: Sequence[Trajectory]
    group: TrainableGroup
    rows: GroupCopy


def make_copy(
    store: Store, group_id: str, place: CopyPlace, reward: Reward | None = None
) -> CopiedGroup | None:
    """Return a copy; None if a body is not stored any more, or damaged. Raises ConfigError."""
    with store.read() as session:
        source = session.get_one(Group, group_id)
        copied_id, task = group_copies.copied_id(place.run_id, source, place.round), source.task
        members = group_copies.trainable_members(session, group_id)
        wires = bodies.read_bodies(session, [(each.episode_id, each.fence) for each in members])
    try:
        stored = [body_of(wires.get((m.episode_id, m.fence), b""), m.sha256) for m in members]
    except MessageError:
        return None
    copied = [_rename(_score(each, reward), place.run_id, copied_id) for each in stored]
    clock = store.clock()
    rows = GroupCopy(
        run_id=place.run_id,
        source_id=group_id,
        batch=place.batch,
        round=place.round,
        rewards={each.member: each.reward for each in copied},
        hashes={each.member: each.sha256 for each in copied},
        bodies=[body_row(e, encode(EpisodeFinished(trajectory=e)), clock) for e in copied],
        steps=[row for each in copied for row in step_rows(each)],
    )
    return CopiedGroup(stored, TrainableGroup(copied_id, task, tuple(copied)), rows)


def _rename(body: Trajectory, run_id: str, group_id: str) -> Trajectory:
    return decode_as_received(
        msgspec.structs.replace(
            body, run_id=run_id, group_id=group_id, episode_id=f"{group_id}-{body.member}"
        )
    )


def _score(body: Trajectory, reward: Reward | None) -> Trajectory:
    """Return the body with the function's rewards. Raises ConfigError."""
    if reward is None:
        return body
    where = f"--reward {reward.name}: episode {body.episode_id}"
    try:
        found = reward.function(body)
    except Exception as error:  # whatever the user's function raises
        raise ConfigError(f"{where}: {in_words(error)}") from error
    if found is None:
        return body
    by_step = isinstance(found, list | tuple)
    try:
        rewards = [read_number(each) for each in (found if by_step else [found])]
        total = read_number(math.fsum(rewards))
        if by_step and len(rewards) != len(body.steps):
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"{where}: it returned {found!r:.60}",
            hint=f"return a number, a list of {len(body.steps)} numbers (one a step), or None; a "
            f"number is at most {LARGEST:.2g}",
        ) from None
    if by_step:
        rewards[body.last_step] = 0.0  # it has what the others leave
    else:
        rewards = [0.0] * len(body.steps)
    steps = tuple(
        msgspec.structs.replace(step, reward=each)
        for step, each in zip(body.steps, rewards, strict=True)
    )
    return msgspec.structs.replace(body, reward=total, steps=steps, branch_rewards=msgspec.UNSET)
