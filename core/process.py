"""Processes on this machine."""

import ctypes
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.core.errors import ConfigError
from agentrl.core.logging import get_logger

TRIES, AGAIN_S = 5, 0.12  # where Linux asks to try again
TERMINATED = 128 + signal.SIGTERM  # exit code of one that ends with its run and was told to before
LOCKS = Path("/proc/locks")
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
MEETING = "AGENTRL_MEETING"  # where ranks of one machine meet; those of many: MASTER_ADDR
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


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The rank of this process. `local`: rank among the processes of its machine.

    `meeting`: rendezvous URL for torch.distributed.
    """

    rank: int
    local: int
    size: int
    meeting: str


def find_rank_place(environ: Mapping[str, str]) -> RankPlace | None:
    """Return the rank that a launcher gave; None without a launcher. Raises ConfigError."""
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        local = int(environ.get("LOCAL_RANK", str(rank)))
    except ValueError as error:
        raise ConfigError(f"RANK, WORLD_SIZE, LOCAL_RANK: {error}") from error
    if not 0 <= rank < size:
        raise ConfigError(f"RANK is {rank}, but WORLD_SIZE is {size}")
    return RankPlace(rank, local, size, environ.get(MEETING, "env://"))


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
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def session_nice() -> int | None:
    """Return the niceness of our session's autogroup; None if Linux has no autogroups."""
    try:
        return int(Path("/proc/self/autogroup").read_text().split()[-1])
    except (OSError, LookupError, ValueError):
        return None


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


def require_unlocked(database: str | Path, locks: Path = LOCKS) -> str:
    """Return a hint about a locked SQLite file: which process holds the lock.

    `locks`: /proc/locks. The write lock is on the index of the write-ahead log or on the file
    itself. A holder in another container is not visible.
    """
    files, holders = set(), set()
    for name in (f"{database}-shm", str(database)):
        with suppress(OSError):
            files.add(_file(Path(name)))
    inodes = {str(inode) for _, inode in files}
    for fields in _read_locks(locks):
        pid, inode = fields[4], fields[5].rpartition(":")[2]
        if fields[3] == "WRITE" and inode in inodes and _holds(pid, files):
            holders.add(f"pid {pid} ({_command(pid)})")
    named = " and ".join(sorted(holders)) or "another process"
    return f"{named} writes to it: wait until that is done, or end it"


def _file(path: Path) -> tuple[int, int]:
    """Return device and inode. On some file systems /proc/locks shows another device."""
    found = path.stat()
    return found.st_dev, found.st_ino


def _holds(pid: str, files: set[tuple[int, int]]) -> bool:
    """Return whether a process has one of the files open; True if we may not look."""
    try:
        opened = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError as error:
        return isinstance(error, PermissionError)
    for each in opened:
        with suppress(OSError):  # it was closed meanwhile
            if _file(each) in files:
                return True
    return False


def _read_locks(path: Path) -> list[list[str]]:
    """Parse /proc/locks: number, kind, mode, access, pid, device and inode, range."""
    try:
        return [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return []


def _command(pid: str, most: int = 60) -> str:
    """Return the first `most` characters of a process's command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return "?"  # it has just ended, or is not ours to see
    line = " ".join(words.decode(errors="replace").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
