"""The lineage of a run: checkpoints, their parents, servers and evaluations."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import CompoundSelect, and_, false, func, or_, select
from sqlalchemy.orm import Session

from agentrl.core.types import CheckpointState, UpdateState
from agentrl.db.models.evaluations import Evaluation
from agentrl.db.models.processes import PolicyServer, Serving
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint, Update
from agentrl.db.query_parts import columns_of, count_by
from agentrl.db.store import read_clock

MADE_BY_UPDATE = and_(
    Update.run_id == Checkpoint.run_id, Update.checkpoint_id == Checkpoint.checkpoint_id
)


@dataclass(frozen=True, slots=True)
class LineageNode:
    """A checkpoint in the tree. `undone`: rolled back. `present`: its files exist."""

    checkpoint_id: str
    version: int
    parent_id: str | None
    undone: bool
    present: bool


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A checkpoint with the update that created it. `snapshot`: whether it has one.

    `update_state`: empty without an update. `loss`: None if the update has none.
    """

    checkpoint_id: str
    version: int
    parent_id: str | None
    state: CheckpointState
    snapshot: bool
    path: str
    created_at: float
    update_state: str
    reason: str
    groups: int | None
    episodes: int | None
    loss_tokens: int | None
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServingPeriod:
    """A period of serving, in minutes since the run's creation; until now if `live`.

    `live`: still served by a server with a valid lease.
    """

    server: str
    engine: str
    track: str
    checkpoint_id: str
    version: int
    from_min: float
    until_min: float
    live: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """An evaluation on a task's split. `low`, `high`: 95 % interval of the success rate.

    `is_complete`: all planned episodes have ended; before, its success is too high.
    """

    checkpoint_id: str
    version: int | None
    task: str
    split: str
    temperature: float
    items: int
    repeats: int
    planned: int
    episodes: int
    success: float
    low: float
    high: float
    is_complete: bool


def fork_origin(session: Session, run_id: str) -> tuple[str, int] | None:
    """Return (run name, version) from which a run was forked; (id, −1) if that is deleted."""
    forked_from = session.scalars(select(Run.forked_from).where(Run.run_id == run_id)).one()
    if forked_from is None:
        return None
    parent = session.execute(
        select(Run.name, Checkpoint.version)
        .join(Checkpoint, Checkpoint.run_id == Run.run_id)
        .where(Checkpoint.checkpoint_id == forked_from)
    ).first()
    return (parent[0], parent[1]) if parent else (forked_from, -1)


def undone_checkpoints() -> CompoundSelect[Any]:
    """Return a query for the ids of checkpoints that were rolled back, also of deleted ones."""
    checkpoints = select(Checkpoint.checkpoint_id).where(
        Checkpoint.state == CheckpointState.ROLLED_BACK
    )
    updates = select(Update.checkpoint_id).where(Update.state == UpdateState.ROLLED_BACK)
    return checkpoints.union_all(updates)


def lineage_nodes(session: Session, run_id: str) -> list[LineageNode]:
    """Return all checkpoints of the run, parents before children."""
    undone = or_(
        Checkpoint.state == CheckpointState.ROLLED_BACK, Update.state == UpdateState.ROLLED_BACK
    )
    query = (
        select(
            Checkpoint.checkpoint_id,
            Checkpoint.version,
            Checkpoint.parent_id,
            func.coalesce(undone, false()),
            Checkpoint.state != CheckpointState.DELETED,
        )
        .outerjoin(Update, MADE_BY_UPDATE)
        .where(Checkpoint.run_id == run_id, Checkpoint.state != CheckpointState.EXTERNAL)
        .order_by(Checkpoint.version, Checkpoint.created_at, Checkpoint.checkpoint_id)
    )
    return [
        LineageNode(checkpoint_id, version, parent_id, bool(gone), bool(present))
        for checkpoint_id, version, parent_id, gone, present in session.execute(query)
    ]


def newest_checkpoints(session: Session, run_id: str, limit: int) -> list[CheckpointEntry]:
    """Return the newest checkpoints, highest version first."""
    query = _entries().where(Checkpoint.run_id == run_id)
    order = (Checkpoint.version, Checkpoint.created_at, Checkpoint.checkpoint_id)
    ordered = query.order_by(*(column.desc() for column in order)).limit(limit)
    return [_entry(*row) for row in session.execute(ordered)]


def checkpoint_entry(session: Session, run_id: str, checkpoint_id: str) -> CheckpointEntry | None:
    """Return one checkpoint of the run."""
    query = _entries().where(Checkpoint.run_id == run_id, Checkpoint.checkpoint_id == checkpoint_id)
    row = session.execute(query).first()
    return _entry(*row) if row else None


def checkpoint_states(session: Session, run_id: str) -> dict[str, int]:
    """Count checkpoints by state."""
    return count_by(session, Checkpoint.state, Checkpoint.run_id == run_id)


def servings(session: Session, run_id: str, limit: int) -> list[ServingPeriod]:
    """Return serving periods: current ones, then the latest."""
    clock = read_clock(session)
    began = session.scalars(select(Run.created_at).where(Run.run_id == run_id)).one()
    begun = (
        select(Serving, PolicyServer)
        .join(PolicyServer, PolicyServer.server_id == Serving.server_id)
        .where(Serving.run_id == run_id)
        .order_by(Serving.serving_id.desc())
        .limit(limit)
    )
    lives = PolicyServer.ended_at.is_(None), PolicyServer.lease_until > clock
    now_served = begun.where(Serving.live_until.is_(None), *lives)
    rows = [*session.execute(now_served), *session.execute(begun)]  # by indexes, each of them
    found = {serving.serving_id: (serving, server) for serving, server in rows}
    return [_serving_period(*row, began, clock) for row in list(found.values())[:limit]]


def measurements(session: Session, run_id: str, limit: int) -> list[Measurement]:
    """Return the run's evaluations, latest first, without checkpoints that were rolled back."""
    query = (
        select(*columns_of(Measurement, Evaluation))
        .where(Evaluation.run_id == run_id)
        .where(Evaluation.checkpoint_id.not_in(undone_checkpoints()))
        .order_by(Evaluation.created_at.desc(), Evaluation.evaluation_id)
        .limit(limit)
    )
    return [Measurement(*tuple(row)) for row in session.execute(query)]


def _entries() -> Any:
    return select(Checkpoint, Update).outerjoin(Update, MADE_BY_UPDATE)


def _entry(checkpoint: Checkpoint, update: Update | None) -> CheckpointEntry:
    return CheckpointEntry(
        checkpoint_id=checkpoint.checkpoint_id,
        version=checkpoint.version,
        parent_id=checkpoint.parent_id,
        state=CheckpointState(checkpoint.state),
        snapshot=checkpoint.snapshot_path is not None,
        path=checkpoint.path,
        created_at=checkpoint.created_at,
        update_state=update.state if update else "",
        reason=update.reason if update else "",
        groups=update.groups if update else None,
        episodes=update.episodes if update else None,
        loss_tokens=update.loss_tokens if update else None,
        metrics=dict(update.metrics) if update else {},
    )


def _serving_period(
    serving: Serving, server: PolicyServer, began: float, clock: float
) -> ServingPeriod:
    alive = server.ended_at is None and server.lease_until > clock
    end = serving.live_until
    if end is None and not alive:  # killed: its last word is the end of its lease
        end = min(server.ended_at or server.lease_until, clock)
    return ServingPeriod(
        server=server.name,
        engine=server.engine,
        track=serving.track,
        checkpoint_id=serving.checkpoint_id,
        version=serving.version,
        from_min=(serving.live_from - began) / 60,
        until_min=((clock if end is None else end) - began) / 60,
        live=end is None,
    )
