"""The interface of a tracker."""

import ctypes
import fcntl
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from agentrl.core.config.config import Config
from agentrl.core.errors import AgentRLError


class TrackerError(AgentRLError):
    """A tracker failed or is unreachable; the call is retried later."""


ACCOUNT = re.compile(r"://.*@", re.DOTALL)  # greedy: a password may hold `/` and `@`
QUERY = re.compile(r"(://[^?]*)\?.*", re.DOTALL)
CLOSED = ("env", "parameters")  # sections whose texts may be anything, keys of services too
HIDDEN = "***"
Figure = tuple[int, str, float]  # version, name, value as 32 bits hold it


class Tracker(Protocol):
    """A tracker, used by one thread. If a call raises, it is retried later."""

    def start(self, run: str, config: Mapping[str, Any]) -> Collection[Figure]:
        """Start the run with that id, or continue it; return what it already holds.

        `config`: all its values.
        """

    def log(self, version: int, metrics: Mapping[str, float]) -> None:
        """Log the figures of a version. Figures lost at a kill are missing at the next start."""

    def finish(self) -> None:
        """Write pending figures and close; `start` may follow."""


def figure(version: int, name: str, value: float) -> Figure:
    """Return a figure to compare: its value with the 32 bits that every tracker keeps."""
    return version, name, ctypes.c_float(value).value  # beyond 32 bits: infinite


@dataclass(frozen=True, slots=True)
class TrackerPlace:
    """The context of a tracker. `folder`: its own folder."""

    folder: Path
    project: str
    url: str
    online: bool


def folder_of(name: str, config: Config) -> Path:
    """Return the local folder of a tracker."""
    folder = config.trackers.folder
    return (Path(folder) if folder else config.home() / "trackers") / name


def lock_tracker(name: str, run: str, folder: Path) -> IO[bytes]:
    """Lock this run's tracker against other processes until closed.

    Two processes would write every row twice. Raises TrackerError if another holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / f"{run}.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise TrackerError(
            f"another process exports run {run} to {name} (it holds {lock.name})",
            hint="wait until it ends, or stop it",
        ) from error
    return lock


def redact_secrets(value: Any, *, closed: bool = False) -> Any:
    """Return a configuration with `***` for possible secrets, since the values leave this machine.

    These are account and query of a URL, and all texts within `CLOSED`.
    """
    if isinstance(value, Mapping):
        return {
            key: redact_secrets(each, closed=closed or key in CLOSED) for key, each in value.items()
        }
    if isinstance(value, list):
        return [redact_secrets(each, closed=closed) for each in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if closed else QUERY.sub(r"\1?***", ACCOUNT.sub("://***@", value))
