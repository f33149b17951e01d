"""Leases of a run's processes, and the last activity of trainer and recorder."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from agentrl.db.models.episodes import StoredTrajectory
from agentrl.db.models.processes import PolicyServer, Worker
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Update
from agentrl.db.store import read_clock


@dataclass(frozen=True, slots=True)
class Lease:
    """A process of a run. `role`: dispatcher, trainer, recorder, worker or policy server.

    `left_s`: seconds until its lease expires, negative afterwards; None: it ended by itself.
    """

    role: str
    name: str
    where: str
    left_s: float | None

    @property
    def state(self) -> str:
        """Return `live`, `lost` (its lease expired) or `ended`."""
        if self.left_s is None:
            return "ended"
        return "live" if self.left_s > 0 else "lost"


def leases(session: Session, run_id: str, limit: int) -> list[Lease]:
    """Return single processes, and the newest workers and policy servers."""
    run = session.get_one(Run, run_id, populate_existing=True)
    clock = read_clock(session)
    single = (
        ("dispatcher", run.dispatcher, run.dispatcher_until),
        ("trainer", f"epoch {run.trainer}" if run.trainer else "", run.trainer_until),
        ("recorder", run.recorder, run.recorder_until),
    )
    found = [
        Lease(role, name, "", until - clock if name and until else None)
        for role, name, until in single
        if name or until
    ]
    workers = (
        select(Worker).where(Worker.run_id == run_id).order_by(Worker.started_at.desc())
    ).limit(limit)
    for row in session.scalars(workers):
        left = row.lease_until - clock if row.ended_at is None else None
        found.append(Lease("worker", row.worker_id, f"{row.host}, pid {row.pid}", left))
    servers = (
        select(PolicyServer)
        .where(PolicyServer.run_id == run_id)
        .order_by(PolicyServer.started_at.desc())
    ).limit(limit)
    for server in session.scalars(servers):
        left = server.lease_until - clock if server.ended_at is None else None
        found.append(Lease("policy server", server.name, server.url, left))
    return found


def idle_s(session: Session, run_id: str) -> dict[str, float]:
    """Return the seconds since the last activity of trainer and recorder."""
    clock = read_clock(session)
    latest = {
        "trainer": (
            select(Update.committed_at)
            .where(Update.run_id == run_id, Update.is_live)
            .order_by(Update.version.desc())
            .limit(1)
        ),
        "recorder": select(func.max(StoredTrajectory.received_at)).where(
            StoredTrajectory.run_id == run_id
        ),
    }
    found = {role: session.scalar(query) for role, query in latest.items()}
    return {role: max(0.0, clock - at) for role, at in found.items() if at is not None}
