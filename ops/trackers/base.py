"""The interface of a tracker."""

import ctypes
import fcntl
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from agentrl.core.config import Config
from agentrl.core.errors import AgentRLError


class TrackerError(AgentRLError):
    """A tracker failed or cannot be reached: told again later."""


ACCOUNT = re.compile(r"://.*@", re.DOTALL)  # greedy: a password may hold `/` and `@`
QUERY = re.compile(r"(://[^?]*)\?.*", re.DOTALL)
CLOSED = ("env", "parameters")  # sections whose texts may be anything, keys of services too
HIDDEN = "***"
Figure = tuple[int, str, float]  # version, name, value as 32 bits hold it


class Tracker(Protocol):
    """Used by one thread. What a call raises costs a later try and nothing else."""

    def start(self, run: str, config: Mapping[str, Any]) -> Collection[Figure]:
        """Begin, or go on with the run of that id; what it holds already.

        `config`: all its values.
        """

    def log(self, version: int, metrics: Mapping[str, float]) -> None:
        """Take the figures of a version. What a kill loses is missing at the next start."""

    def finish(self) -> None:
        """Write what was taken and close; `start` may follow."""


def figure(version: int, name: str, value: float) -> Figure:
    """What tells whether a tracker holds a value, whatever precision it keeps."""
    return version, name, ctypes.c_float(value).value  # beyond 32 bits: infinite


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a tracker keeps things. `folder`: of its own."""

    folder: Path
    project: str
    url: str
    online: bool


def folder_of(name: str, config: Config) -> Path:
    """What a tracker keeps on this machine."""
    folder = config.trackers.folder
    return (Path(folder) if folder else config.home() / "trackers") / name


def alone(name: str, run: str, folder: Path) -> IO[bytes]:
    """What keeps every other process from telling this run to this tracker, until it is closed.

    Two would write each row twice. Raises TrackerError while there is another.
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


def without_secrets(value: Any, *, closed: bool = False) -> Any:
    """Values of a configuration, with `***` for what may be secret: they leave this machine.

    That is account and query of a URL, and all texts within `CLOSED`.
    """
    if isinstance(value, Mapping):
        return {
            key: without_secrets(each, closed=closed or key in CLOSED)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(each, closed=closed) for each in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if closed else QUERY.sub(r"\1?***", ACCOUNT.sub("://***@", value))


def flat(config: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Nested values by their whole key."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{where}{key}.")
        else:
            found[f"{where}{key}"] = value
    return found
