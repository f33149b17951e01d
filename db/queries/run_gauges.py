"""Gauges of a run for monitoring: counts of open work. Every query reads open rows only."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from agentrl.core.types import EpisodeState
from agentrl.db.models.episodes import Episode
from agentrl.db.models.processes import PolicyServer, Worker
from agentrl.db.models.runs import Run
from agentrl.db.queries import progress
from agentrl.db.query_parts import count_by
from agentrl.db.store import now
from agentrl.db.transitions import alarms, groups

OPEN = (EpisodeState.QUEUED, EpisodeState.RUNNING)


@dataclass(frozen=True, slots=True)
class RunGauges:
    """Gauges of a run. `leases`: processes by kind and state (live, lapsed). `wait_s`: age of the
    oldest queued episode. `staleness`: of the last batch, fresh and lagged. `alarms`: raised, by
    name.
    """

    version: int
    groups: Mapping[str, int]
    episodes: Mapping[str, int]
    wait_s: float
    leases: Mapping[tuple[str, str], int]
    staleness: Mapping[str, float]
    success: Mapping[str, float]
    alarms: Mapping[str, int]


def run_gauges(session: Session, run_id: str) -> RunGauges:
    """Return the gauges of an existing run."""
    queued = (Episode.run_id == run_id, Episode.state == EpisodeState.QUEUED)
    oldest = session.scalar(select(now() - func.min(Episode.queued_at)).where(*queued))
    raised: dict[str, int] = {}
    for alarm in alarms.raised_alarms(session, run_id):
        raised[alarm.name] = raised.get(alarm.name, 0) + 1
    return RunGauges(
        version=session.scalars(select(Run.version).where(Run.run_id == run_id)).one(),
        groups={str(s): n for s, n in groups.open_groups(session, run_id).items()},
        episodes=count_by(
            session, Episode.state, Episode.run_id == run_id, Episode.state.in_(OPEN)
        ),
        wait_s=max(0.0, oldest or 0.0),
        leases=_leases(session, run_id),
        staleness=progress.staleness(session, run_id),
        success=progress.recent_success(session, run_id),
        alarms=raised,
    )


def _leases(session: Session, run_id: str) -> dict[tuple[str, str], int]:
    """Count leases of processes that did not end by themselves; a lapsed one is dead or cut off."""
    found: dict[tuple[str, str], int] = {}
    for kind, table, named in (
        ("worker", Worker, Worker.worker_id),
        ("policy", PolicyServer, PolicyServer.url),  # an evaluation's has none
    ):
        live: ColumnElement[str] = case((table.lease_until > now(), "live"), else_="lapsed")
        states = count_by(
            session, live, table.run_id == run_id, table.ended_at.is_(None), named != ""
        )
        found |= {(kind, state): number for state, number in states.items()}
    return found
