"""Rows of a run that a follower reads: the run with a server of its own, and its checkpoints."""

from pathlib import Path

from agentrl.core.types import CheckpointState, RunState
from agentrl.db.models.processes import PolicyServer
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import policy_servers
from agentrl.db.store import Store, now


def begin(store: Store, server_id: str, engine: str) -> None:
    """Insert the run `run` and a live policy server of it."""
    with store.write() as session:
        session.add(
            Run(run_id="run", name="run", config="", seed=0, state=RunState.RUNNING,
                created_at=now())
        )  # fmt: skip
    begin_server(store, server_id, engine)


def begin_server(store: Store, server_id: str, engine: str = "local") -> None:
    """Insert a live policy server of the run."""
    server = PolicyServer(server_id=server_id, run_id="run", name="p", engine=engine, url="x")
    with store.write() as session:
        policy_servers.register_server(session, server, lease_s=600)


def register(
    store: Store, name: str, version: int, path: Path, *, run_id: str = "run"
) -> Checkpoint:
    """Insert a live checkpoint; return its row, detached from its session."""
    row = Checkpoint(
        checkpoint_id=name, run_id=run_id, version=version, path=str(path),
        state=CheckpointState.LIVE, created_at=now(),
    )  # fmt: skip
    with store.write() as session:
        session.add(row)
        session.flush()
        session.expunge(row)
    return row
