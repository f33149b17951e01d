"""External models in the registry: their checkpoint rows and their usage."""

from collections.abc import Callable

from sqlalchemy import update
from sqlalchemy.orm import Session

from agentrl.core.types import CheckpointState
from agentrl.db.models.processes import Spending
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry.checkpoints import LivePolicy, live_policies
from agentrl.db.store import now

VERSION = -1  # of every external model: it is of no lineage


def track_of(name: str) -> str:
    """Return the track of the external policy server `name`."""
    return f"external({name})"


def require_checkpoint(session: Session, run_id: str, name: str) -> Checkpoint:
    """Create the checkpoint row of an external model (never live, never deleted) and its budget
    row.
    """
    checkpoint_id = f"{run_id}-external-{name}"
    found = session.get(Checkpoint, checkpoint_id)
    if found is None:
        found = Checkpoint(
            checkpoint_id=checkpoint_id,
            run_id=run_id,
            version=VERSION,
            path=track_of(name),
            state=CheckpointState.EXTERNAL,
            created_at=now(),
        )
        session.add(found)
        session.flush()
    if session.get(Spending, (run_id, name)) is None:
        session.add(Spending(run_id=run_id, name=name, requests=0, tokens=0))
        session.flush()
    return found


def live_server(session: Session, run_id: str, name: str) -> LivePolicy | None:
    """Return the server of the external model `name` while it is live."""
    track = track_of(name)
    return next((each for each in live_policies(session, run_id) if each.track == track), None)


def spending(session: Session, run_id: str, name: str) -> tuple[int, int]:
    """Return the requests and tokens so far."""
    row = session.get(Spending, (run_id, name))
    return (row.requests, row.tokens) if row else (0, 0)


def record_spending(
    run_id: str, name: str, requests: int, tokens: int
) -> Callable[[Session], None]:
    """Return work that adds to the usage. Repeated after a commit it counts twice."""

    def add(session: Session) -> None:
        session.execute(
            update(Spending)
            .where(Spending.run_id == run_id, Spending.name == name)
            .values(requests=Spending.requests + requests, tokens=Spending.tokens + tokens)
        )

    return add
