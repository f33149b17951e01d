"""`agentrl rescore`: a run of copies of another run's groups, with new rewards.

history of the run ─▶ copies of its groups, scored by the function ─▶ a run that is over

Until it has all its copies the run is paused.
"""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
from sqlalchemy.orm import Session

from agentrl.core import config_loading
from agentrl.core.config.sections.base import check_name
from agentrl.core.errors import StoreError
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import RESCORING, RunState
from agentrl.db.models.runs import Run
from agentrl.db.queries import history_batches
from agentrl.db.queries.history_batches import HistoryBatch
from agentrl.db.store import Store, now
from agentrl.db.transitions import lifecycle, runs
from agentrl.db.transitions.trajectories import group_copies
from agentrl.db.transitions.trajectories.group_copies import GroupCopy
from agentrl.envs.gateway.reward import load_function
from agentrl.ops.interruption import handle_interruption
from agentrl.ops.offline.copying import CopiedGroup, CopyPlace, Reward, make_copy
from agentrl.ops.runs.lifecycle import RunPlace, open_place
from agentrl.ops.tables import console, plain
from agentrl.trainer.batch import are_different


@dataclass(slots=True)
class RewardChange:
    """What a reward function did to a task. `spread`: groups whose members' rewards differ."""

    groups: int = 0
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    spread_before: int = 0
    spread_after: int = 0

    def count(self, copied: CopiedGroup) -> None:
        self.groups += 1
        self.before += (before := _rewards(copied.stored))
        self.after += (after := _rewards(copied.group.members))
        self.spread_before += are_different(before)
        self.spread_after += are_different(after)


def rescore(where: RunPlace, function: str, name: str) -> str:
    """Copy a run's groups with new rewards into the run `name`; return the message to print.

    Raises ItemError if the function cannot be loaded, ConfigError if it fails, StoreError, and
    KeyboardInterrupt at SIGINT and SIGTERM.
    """
    check_name(name, "--name")
    reward = Reward(function, load_function(function, "rescore", "--reward"))
    with open_place(where) as (store, run):
        group_copies.refuse_partial(run)
        with store.read() as session:
            batches = history_batches.read_batches(session, run.run_id)
            start = history_batches.starting_checkpoint(session, run)
        if not batches:
            raise StoreError(
                f"run {run.name} has no trained or closed group yet",
                hint="wait for its first update (`agentrl status CONFIG`)",
            )
        run_id = f"{name}-{uuid.uuid4().hex[:6]}"
        copy = Run(
            run_id=run_id,
            name=name,
            config=_config(run, name),
            seed=run.seed,
            state=RunState.PAUSED,
            reason=RESCORING,
            forked_from=start.checkpoint_id if start else run.forked_from,
        )
        origin = f"rescored from {run.name} with {function}"
        with handle_interruption():
            changes, missing = _copy_groups(store, copy, origin, batches, reward)
    _show(changes)
    groups = sum(change.groups for change in changes.values())
    gone = f"; {missing} groups left out: their bodies are not stored" if missing else ""
    return f"run {run_id} has {groups} groups of {run.name} with new rewards{gone}"


def _require_free_name(session: Session, name: str) -> None:
    """Raise StoreError if there is a run of that name."""
    if found := runs.find_run(session, name):
        group_copies.refuse_partial(found)
    lifecycle.require_new_name(session, name)


def _config(run: Run, name: str) -> str:
    config = config_loading.from_json(run.config, f"run {run.name}")
    section = msgspec.structs.replace(config.run, name=name)
    return config_loading.dumps(msgspec.structs.replace(config, run=section))


def _copy_groups(
    store: Store, run: Run, origin: str, batches: Sequence[HistoryBatch], reward: Reward
) -> tuple[dict[str, RewardChange], int]:
    """Insert the run and its copies; return the changes by task, and how many bodies are missing.

    `origin`: why the run is complete in the end. An error leaves nothing of it.
    """
    changes: defaultdict[str, RewardChange] = defaultdict(RewardChange)
    missing, run_id = 0, run.run_id
    with store.write() as session:
        _require_free_name(session, run.name)
        run.created_at = now()
        session.add(run)
    try:
        for batch in batches:
            for group_id, _ in batch.group_ids:
                copied = make_copy(store, group_id, CopyPlace(run_id, batch.version), reward)
                if copied is None:
                    missing += 1
                    continue
                store.transact(partial(_insert_copy, copy=copied.rows))
                changes[copied.group.task].count(copied)
        with store.write() as session:
            group_copies.complete_run(session, run_id, origin)
    except BaseException:
        with store.write() as session:
            lifecycle.delete_run_rows(session, run_id)
        raise
    return changes, missing


def _insert_copy(session: Session, copy: GroupCopy) -> None:
    group_copies.require_partial(session, copy.run_id)
    group_copies.add_copy(session, copy)


def _rewards(members: Sequence[Trajectory]) -> list[float]:
    return [each.reward for each in members]


def _show(changes: dict[str, RewardChange]) -> None:
    table = plain("task", "groups", "episodes", "mean reward", "groups with spread")
    for task, change in sorted(changes.items()):
        count = len(change.before)
        table.add_row(
            task,
            str(change.groups),
            str(count),
            f"{sum(change.before) / count:.3f} → {sum(change.after) / count:.3f}",
            f"{change.spread_before} → {change.spread_after}",
        )
    console().print(table)
