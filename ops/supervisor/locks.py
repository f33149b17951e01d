"""Ensures one supervisor per home, with a lock and processes.json."""

import fcntl
import json
from pathlib import Path
from typing import IO, Any

from agentrl.core.errors import AgentRLError
from agentrl.core.processes.process import has_ended, process_began


def only_one(home: Path) -> IO[bytes]:
    """A lock on the home until it is closed or its process ends. Raises AgentRLError."""
    lock = (home / "supervisor.lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        refuse_second(home)
        raise AgentRLError(
            f"a supervisor is starting or stopping in {home}", hint="try again"
        ) from None
    return lock


def refuse_second(home: Path) -> None:
    """Raise AgentRLError where a supervisor runs, also of another run."""
    if (other := running_supervisor(home)) is not None:
        name = _read_state(home).get("run")
        raise AgentRLError(
            f"a supervisor (pid {other}) {f'of run {name} ' if name else ''}already runs in {home}",
            hint="stop it with `agentrl down CONFIG` and the configuration of its run",
        )


def running_supervisor(home: Path, run: str = "") -> int | None:
    """Return the pid of the supervisor of a home, if it still runs.

    `run`: the name of a run; None if the supervisor is of another run in the same home.
    """
    state = _read_state(home)
    if not state or run not in ("", state.get("run", run)):  # a former version wrote no run
        return None
    pid = int(state["supervisor"])
    return None if has_ended(pid, state["began"]) else pid


def running_children(home: Path) -> list[str]:
    """The names of the processes of a home that still run; none where Linux hides them."""
    processes = _read_state(home).get("processes", {})
    return [name for name, row in processes.items() if row["pid"] and process_began(row["pid"])]


def _read_state(home: Path) -> dict[str, Any]:
    """Return what a supervisor wrote last; empty after an orderly end."""
    try:
        state: dict[str, Any] = json.loads((home / "processes.json").read_text())
    except (OSError, ValueError):
        return {}
    return state
