"""`agentrl whatif`: recomputes stored updates with another configuration, and compares.

update ─▶ bodies of what the trainer looked at ─▶ learned(run's configuration)   ─┐
                                              └▶ learned(the file's, and --set) ─┴▶ a table by task
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy.orm import Session

from agentrl.checkpoints import checkpoint_store, manifest
from agentrl.core import config_loading, logging
from agentrl.core.config.config import Config
from agentrl.core.errors import MessageError, StoreError
from agentrl.core.trajectory import Trajectory
from agentrl.core.trajectory_body import body_of
from agentrl.core.types import CheckpointState, UpdateState
from agentrl.db.admin.readonly import open_history
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint, Update
from agentrl.db.queries import recorded_updates
from agentrl.db.queries.recorded_updates import SeenMember
from agentrl.db.registry import checkpoints
from agentrl.db.transitions import runs, updates
from agentrl.db.transitions.trajectories import bodies
from agentrl.ops.replay.recompute_update import (
    ALL,
    RecomputedUpdate,
    SeenGroups,
    TaskRow,
    recompute_update,
)
from agentrl.ops.tables import console, plain
from agentrl.trainer.batch import TrainableGroup

if TYPE_CHECKING:
    from agentrl.trainer.model.scoring import Scorer

NEAR = 1e-3  # of a stored metric, relative: rounding
NUMBERS = {  # columns of a row, and how each is written
    "groups": "{}",
    "filtered": "{}",
    "stale": "{}",
    "loss_tokens": "{}",
    "share": "{:.1%}",
    "advantage": "{:.3f}",
    "effective_sample_size": "{:.3f}",
    "weighted": "{:.1%}",
    "clipped": "{:.1%}",
}
HEADS = {"loss_tokens": "tokens", "advantage": "mean |A|", "effective_sample_size": "ESS"}


@dataclass(frozen=True, slots=True)
class StoredUpdate:
    """A stored update. `paths`: of its starting checkpoint and of the run's first.

    `lost`: closed groups whose bodies were deleted. `stored`: its metrics.
    """

    version: int
    update_id: str
    was: Config
    seen: SeenGroups
    lost: int
    paths: tuple[str, str] | None
    stored: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Result. `was`: under the run's configuration.

    `off`: the worst reproduced metric and its relative distance from the stored one. `scored`: with
    the policy that was trained.
    """

    version: int
    update_id: str
    scored: bool
    lost: int
    off: tuple[str, float]
    was: RecomputedUpdate
    now: RecomputedUpdate


def whatif(
    path: Path, names: Sequence[str], changes: Sequence[str], *, score: bool, as_json: bool
) -> None:
    """Recompute updates and print them. Raises StoreError, MessageError, ConfigError."""
    logging.configure("whatif", level="WARNING")
    file = config_loading.load(path)
    config = config_loading.with_changes(file, changes)
    with closing(open_history(file.store_url())) as store:
        results = []
        for name in names:
            print(f"recomputing update {name} …", file=sys.stderr)
            with store.read() as session:
                stored = _read_update(session, runs.require_run(session, file.run.name), name)
            results.append(_answer(stored, config, score=score))
            if not as_json:
                _show(results[-1], are_weights_deleted=stored.paths is None)
    if as_json:
        print(msgspec.json.encode(results).decode())


def _read_update(session: Session, run: Run, name: str) -> StoredUpdate:
    update = recorded_updates.find_update(session, run, name)
    members = recorded_updates.seen_members(session, update)
    wires = bodies.read_bodies(session, [(each.episode_id, each.fence) for each in members])
    groups: list[TrainableGroup] = []
    lost = 0
    for group_id, rows in groupby(members, key=lambda member: member.group_id):
        group = _group(group_id, list(rows), wires)
        lost += group is None
        groups += [group] if group else []
    # a line that was left before the update was made is left by now, and none but those count
    forked = update.state != UpdateState.ROLLED_BACK
    forks = updates.forks(session, run.run_id) if forked else {}
    return StoredUpdate(
        version=update.version,
        update_id=update.update_id,
        was=config_loading.from_json(run.config, f"run {run.name}"),
        seen=SeenGroups(update.version - 1, groups, forks),
        lost=lost,
        paths=_paths(session, run, update),
        stored=update.metrics,
    )


def _group(
    group_id: str, rows: Sequence[SeenMember], wires: Mapping[tuple[str, int], bytes]
) -> TrainableGroup | None:
    """Return a group; None if a body was deleted and it was not trained. Raises StoreError."""
    members: list[Trajectory] = []
    for row in rows:
        wire = wires.get((row.episode_id, row.fence), b"")  # `db prune` leaves none
        if not wire and row.learned:
            raise StoreError(f"episode {row.episode_id}: the trajectory is not stored any more")
        if not wire:
            return None
        try:
            members.append(body_of(wire, row.sha256))
        except MessageError as error:
            raise MessageError(f"episode {row.episode_id}: {error}") from error
    return TrainableGroup(group_id, rows[0].task, tuple(members))


def _paths(session: Session, run: Run, update: Update) -> tuple[str, str] | None:
    """Return the paths; None if the files of either checkpoint were deleted."""
    parent = recorded_updates.parent_of(session, update)
    first = next(iter(checkpoints.live_checkpoints(session, run.run_id)), None)
    undeleted: list[Checkpoint] = [
        each for each in (parent, first) if each and each.state != CheckpointState.DELETED
    ]
    return (undeleted[0].path, undeleted[1].path) if len(undeleted) == 2 else None


def _answer(stored: StoredUpdate, config: Config, *, score: bool) -> WhatIf:
    scorer = _scorer(stored, config) if score else None
    was = recompute_update(stored.seen, stored.was, scorer)
    now = recompute_update(stored.seen, config, scorer)
    off = _off(stored.stored, was.metrics)
    return WhatIf(stored.version, stored.update_id, scorer is not None, stored.lost, off, was, now)


def _scorer(stored: StoredUpdate, config: Config) -> "Scorer | None":
    """Return a scorer; None if the policy is unavailable: deleted files, or an adapter."""
    if stored.paths is None:
        return None
    path, first = (checkpoint_store.fetch(each, config.cache()) for each in stored.paths)
    if not path.is_dir() or manifest.find_base(path) is not None:
        return None
    from agentrl.trainer.engines.learner import Hardware
    from agentrl.trainer.model.scoring import Scorer

    manifest.verify(path)
    hardware = Hardware.from_config(config.model, config.trainer)
    return Scorer(path, first, hardware)


def _off(stored: Mapping[str, float], reproduced: Mapping[str, float]) -> tuple[str, float]:
    """Return the worst reproduced metric and its relative distance."""
    distances = [
        (abs(reproduced[name] - value) / max(abs(value), 1e-3), name)
        for name, value in stored.items()
        if name in reproduced
    ]
    distance, name = max(distances, default=(0.0, ""))
    return name, distance


def _show(result: WhatIf, *, are_weights_deleted: bool) -> None:
    print(f"update {result.version} ({result.update_id})")
    table = plain("task", *(HEADS.get(name, name) for name in NUMBERS))
    for task, now in result.now.rows.items():
        was = result.was.rows[task]
        cells = (_cell(name, form, was, now) for name, form in NUMBERS.items())
        table.add_row("all" if task == ALL else task, *cells)
    console().print(table)
    name, distance = result.off
    if distance > NEAR:
        print(
            f"with the run's configuration, {name} differs from the stored value by {distance:.1%}"
        )
    if result.lost:
        print(f"{result.lost} untrained groups are not included: their trajectories were deleted")
    if not result.scored:
        why = ", which were deleted (trainer.keep_checkpoints)" if are_weights_deleted else ""
        print(f"ESS, weighted and clipped need the weights of the previous checkpoint{why}")


def _cell(name: str, form: str, was: TaskRow, now: TaskRow) -> str:
    then, value = (_format_value(getattr(row, name), form) for row in (was, now))
    return value if then == value else f"{then} → {value}"


def _format_value(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
