"""Alarms: metrics of an update, or of the groups since the last update, that crossed a threshold.

Each alarm has a row when it is raised and a row when it ends. The view `raised_alarms` shows the
latest row of each task and name whose update was not rolled back.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import and_, func, or_, select, text, true
from sqlalchemy.orm import Session

from agentrl.core.types import GroupState
from agentrl.db.models.episodes import Group
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Alarm, Update
from agentrl.db.query_parts import live_alarms
from agentrl.db.store import read_clock

Counts = dict[str, dict[GroupState, int]]


@dataclass(frozen=True, slots=True)
class AlarmReading:
    """A metric of a task (empty: of the whole update) with its threshold. `raised`: crossed."""

    task: str
    name: str
    value: float
    threshold: float
    raised: bool


@dataclass(frozen=True, slots=True)
class RaisedAlarm:
    """A raised alarm. `since_s`: seconds since it was raised, until the run's end."""

    task: str
    name: str
    value: float
    threshold: float
    version: int
    since_s: float
    raised_at: float


def raised_alarms(session: Session, run_id: str) -> list[RaisedAlarm]:
    """Return the alarms raised now, or when the run ended, by task and name."""
    rows = session.execute(
        text(
            "SELECT task, name, value, threshold, version, raised_at FROM raised_alarms "
            "WHERE run_id = :run_id ORDER BY task, name"
        ),
        {"run_id": run_id},
    ).all()
    ended = session.scalar(select(Run.ended_at).where(Run.run_id == run_id))
    clock = ended or read_clock(session)
    return [
        RaisedAlarm(
            task=row.task,
            name=row.name,
            value=row.value,
            threshold=row.threshold,
            version=row.version,
            since_s=max(0.0, clock - row.raised_at),
            raised_at=row.raised_at,
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class AlarmPeriod:
    """An alarm from the update that raised it to the one that ended it.

    `value`: when it was raised. `ended_version`, `seconds`: None while it is raised.
    """

    task: str
    name: str
    value: float
    threshold: float
    version: int
    ended_version: int | None = None
    seconds: float | None = None


def alarm_history(session: Session, run_id: str, most: int) -> list[AlarmPeriod]:
    """Return the last periods of alarms, oldest first, from at most `most` rows.

    Rows of updates that were rolled back do not count.
    """
    query = live_alarms(run_id).order_by(Alarm.alarm_id.desc()).limit(most)
    found: dict[tuple[str, str, float], AlarmPeriod] = {}
    for row in reversed(session.scalars(query).all()):
        key = row.task, row.name, row.raised_at
        if row.ended_at is None:
            found[key] = AlarmPeriod(row.task, row.name, row.value, row.threshold, row.version)
        elif key in found:
            seconds = row.ended_at - row.raised_at
            found[key] = replace(found[key], ended_version=row.version, seconds=seconds)
    return list(found.values())


def add_alarms(
    session: Session,
    run_id: str,
    update_id: str | None,
    version: int,
    decisions: Sequence[tuple[AlarmReading, RaisedAlarm | None]],
) -> None:
    """Insert a row for each reading that raises or ends an alarm."""
    clock = read_clock(session)
    session.add_all(
        Alarm(
            run_id=run_id,
            update_id=update_id,
            version=version,
            task=reading.task,
            name=reading.name,
            value=reading.value,
            threshold=reading.threshold,
            raised_at=before.raised_at if before else clock,
            ended_at=clock if before else None,
        )
        for reading, before in decisions
    )


def alarms_of_update(session: Session, update_id: str) -> list[AlarmReading]:
    """Return the readings stored with an update."""
    rows = session.scalars(
        select(Alarm).where(Alarm.update_id == update_id).order_by(Alarm.alarm_id)
    )
    return [AlarmReading(r.task, r.name, r.value, r.threshold, r.ended_at is None) for r in rows]


def groups_since_update(
    session: Session,
    run_id: str,
    taken: Collection[str] | None = None,
    until: float | None = None,
) -> Counts:
    """Count groups by task that are ready, or were closed since the last update started.

    `taken`: ready groups that an update is about to close; None: all ready groups. `until`: the
    start of that update, for groups that are closed while it is published belong to the next one.
    """
    ready = Group.state == GroupState.READY
    if taken is not None:
        ready &= Group.group_id.in_(taken)
    last = select(func.max(Update.started_at)).where(Update.run_id == run_id).scalar_subquery()
    closed = and_(
        Group.state.in_([GroupState.FILTERED, GroupState.STALE, GroupState.FAILED]),
        Group.left_out_of.is_(None),
        Group.closed_at > func.coalesce(last, 0.0),
        true() if until is None else Group.closed_at <= until,
    )
    query = (
        select(Group.task, Group.state, func.count())
        .where(Group.run_id == run_id, or_(ready, closed))
        .group_by(Group.task, Group.state)
    )
    counts: Counts = {}
    for task, state, number in session.execute(query):
        counts.setdefault(task, {})[GroupState(state)] = number
    return counts
