"""A lease on a checkpoint while it is evaluated, so that retention does not delete it.

An evaluation registers as a policy server without an address, which no worker draws, and sends
heartbeats. When it ends, its row is closed; when it is killed, its lease expires.
"""

import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Protocol

from sqlalchemy.orm import Session

from agentrl.core.errors import CheckpointError, StoreUnavailable
from agentrl.core.logging import get_logger
from agentrl.core.processes.threads import vital_thread
from agentrl.core.types import CheckpointState
from agentrl.db.models.processes import PolicyServer
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import policy_servers
from agentrl.db.store import Store

BEAT_S = 3.0
LEASE_S = 20.0
JOIN_S = 3.0  # a beat that hangs is left to its time-outs

log = get_logger()


class LeasedCheckpoint(Protocol):
    """The leased checkpoint; `run_id` is None if it is not in the database."""

    @property
    def checkpoint_id(self) -> str: ...

    @property
    def run_id(self) -> str | None: ...


@contextmanager
def hold_checkpoint(store: Store, target: LeasedCheckpoint) -> Iterator[None]:
    """Lease a checkpoint. Raises CheckpointError if it was deleted meanwhile, StoreError."""
    if target.run_id is None:
        yield
        return
    server_id, ended = f"eval-{uuid.uuid4().hex[:8]}", threading.Event()
    with closing(store.one_thread()) as own:
        store.transact(lambda session: _register(session, server_id, target))
        beat = vital_thread("checkpoint-lease", partial(_beat, own, server_id, ended))
        beat.start()
        try:
            yield
        finally:
            ended.set()
            beat.join(JOIN_S)
            _release(store, server_id)


def _release(store: Store, server_id: str) -> None:
    """Release the lease; a database error does not replace the original error."""
    try:
        store.transact(lambda session: policy_servers.end_server(session, server_id))
    except StoreUnavailable as error:
        log.warning("Checkpoint lease not released; it expires by itself", error=str(error))


def _register(session: Session, server_id: str, target: LeasedCheckpoint) -> None:
    """Register the lease under the run's lock, which retention takes, too. Safe to repeat."""
    if session.get(PolicyServer, server_id) is not None:
        return
    run = session.get_one(Run, target.run_id, with_for_update=True)
    row = session.get(Checkpoint, target.checkpoint_id)
    if row is None or row.state == CheckpointState.DELETED:
        raise CheckpointError(
            f"checkpoint {target.checkpoint_id} was deleted",
            hint="choose another version of the run",
        )
    server = PolicyServer(
        server_id=server_id, run_id=run.run_id, name="eval", engine="local", url=""
    )
    policy_servers.register_server(session, server, lease_s=LEASE_S)
    session.flush()
    policy_servers.begin_serving(session, server_id, f"pinned({row.checkpoint_id})", row)


def _beat(store: Store, server_id: str, ended: threading.Event) -> None:
    """Extend the lease until `ended`; the evaluation continues without the database."""
    while not ended.wait(BEAT_S):
        with suppress(StoreUnavailable):  # the store has said so
            store.transact(
                lambda session: policy_servers.beat_server(session, server_id, lease_s=LEASE_S),
                patience_s=BEAT_S,
            )
