"""What processes in containers and on other machines wait for, as they say themselves."""

from collections.abc import Sequence

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from agentrl.core.telemetry.outages import STALE_S, Outage
from agentrl.core.types import ID_LENGTH
from agentrl.db.models.processes import ServiceOutage
from agentrl.db.store import now, read_clock


def put_outages(session: Session, run_id: str, process: str, found: Sequence[Outage]) -> None:
    """Replace the outages of a process, and delete those that others no longer repeat."""
    ours = ServiceOutage.process == process
    session.execute(
        delete(ServiceOutage)
        .where(ServiceOutage.run_id == run_id, or_(ours, ServiceOutage.until < now()))
        .execution_options(synchronize_session=False)
    )
    clock = read_clock(session)
    session.add_all(
        ServiceOutage(
            run_id=run_id,
            process=process,
            service=each.service[:ID_LENGTH],
            since=clock - each.waited_s,
            until=clock + STALE_S,
            error=each.error,
        )
        for each in found
    )


def read_outages(session: Session, run_id: str) -> list[Outage]:
    """Return the outages that processes still repeat."""
    rows = session.execute(
        select(ServiceOutage, now() - ServiceOutage.since)
        .where(ServiceOutage.run_id == run_id, ServiceOutage.until >= now())
        .order_by(ServiceOutage.process, ServiceOutage.service)
    )
    return [Outage(row.process, row.service, waited_s, row.error) for row, waited_s in rows]
