"""Processes on this machine."""

import ctypes
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.core.logging import get_logger

TRIES, AGAIN_S = 5, 0.12  # where Linux asks to try again
TERMINATED = 128 + signal.SIGTERM  # exit code of one that ends with its run and was told to before
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
PROC = Path("/proc")
SUPERVISOR = "AGENTRL_SUPERVISOR"  # the variable that names the parent's pid to its children
INSTANCE, FORMER_INSTANCE = "AGENTRL_INSTANCE", "AGENTRL_FORMER_INSTANCE"  # `Instance`

log = get_logger()


def agentrl_command(*arguments: str) -> list[str]:
    """Return the command line of `agentrl ARGUMENTS` with the Python of this process.

    `-P`: as for the installed script, no module of the current folder shadows an installed one.
    """
    return [sys.executable, "-P", "-m", "agentrl.cli.main", *arguments]


@dataclass(frozen=True, slots=True)
class Instance:
    """One start of a process. `name`: unique. `former`: of the dead process that it replaces."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    former: str = ""

    def environment(self) -> dict[str, str]:
        """Return the variables that tell it to the process."""
        return {INSTANCE: self.name, FORMER_INSTANCE: self.former}

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Instance":
        """Return what the supervisor named; a new one without a supervisor."""
        if name := environ.get(INSTANCE):
            return cls(name, environ.get(FORMER_INSTANCE, ""))
        return cls()


def forbid_inspection() -> None:
    """Protect our environment, memory and open files from other processes of the same user.

    They can neither read /proc/PID/environ, mem and fd nor trace us; nor can a debugger without
    CAP_SYS_PTRACE. Programs that we start are not protected: Linux resets the flag at exec.
    """
    _prctl(PR_SET_DUMPABLE, 0)


@contextmanager
def _own_proc_files() -> Iterator[None]:
    """Make /proc/self accessible for a moment; a protected process's files belong to root."""
    hidden = _prctl(PR_GET_DUMPABLE, 0) == 0
    if hidden:
        _prctl(PR_SET_DUMPABLE, 1)
    try:
        yield
    finally:
        if hidden:
            _prctl(PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> int:
    """Call prctl; return -1 if it does not exist."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return -1 if prctl is None else int(prctl(option, value, 0, 0, 0))


def process_began(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None: it ended. A reused pid differs."""
    try:
        return _read_start(pid, PROC)
    except OSError:
        return None


def has_ended(pid: int, began: int, proc: Path = PROC) -> bool:
    """Return whether the process that started at `began` (`process_began`) has ended.

    Where Linux hides other processes (`hidepid`), it has not while any process has its pid.
    """
    try:
        return _read_start(pid, proc) != began
    except OSError:
        return not _is_used(pid)


def _read_start(pid: int, proc: Path) -> int | None:
    """Return when a process started; None for a zombie. Raises OSError: it ended or is hidden."""
    fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def _is_used(pid: int) -> bool:
    """Return whether a process has this pid."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def session_nice() -> int | None:
    """Return the niceness of our session's autogroup; None if Linux has no autogroups."""
    try:
        return int(Path("/proc/self/autogroup").read_text().split()[-1])
    except (OSError, LookupError, ValueError):
        return None


def lower_priority(nice: int) -> None:
    """Add `nice` to this process's niceness; set its session's where Linux has autogroups."""
    os.nice(nice)
    set_session_nice(nice)


def set_session_nice(nice: int, pid: int | None = None) -> None:
    """Set the niceness of our session's autogroup, or of a process's; log a warning on failure.

    Unprivileged callers get one autogroup change per 100 ms, machine-wide.
    """
    if session_nice() is None:
        return
    for left in reversed(range(TRIES)):
        try:
            with (
                _own_proc_files(),
                Path(f"/proc/{pid or 'self'}/autogroup").open("wb", buffering=0) as file,
            ):
                os.write(file.fileno(), str(nice).encode())
            return
        except OSError as error:
            if not left or not isinstance(error, BlockingIOError):
                log.warning(
                    "CPU weight of the session not set", nice=nice, pid=pid, error=str(error)
                )
                return
        time.sleep(AGAIN_S)
