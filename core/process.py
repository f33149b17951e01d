"""Processes of this machine."""

import ctypes
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agentrl.core.errors import ConfigError
from agentrl.core.logging import get_logger

TRIES, AGAIN_S = 5, 0.12  # where Linux asks to try again
TOLD = 128 + signal.SIGTERM  # exit code of one that ends with its run and was told to before
LOCKS = Path("/proc/locks")
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
MEETING = "AGENTRL_MEETING"  # where ranks of one machine meet; those of many: MASTER_ADDR
SUPERVISOR = "AGENTRL_SUPERVISOR"  # the variable that names the parent's pid to its children

log = get_logger()


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the processes that learn together this one is. `local`: among its machine's.

    `meeting`: a URL that torch.distributed takes.
    """

    rank: int
    local: int
    size: int
    meeting: str


def place(environ: Mapping[str, str]) -> Place | None:
    """The place that a launcher gave this process; None where none did. Raises ConfigError."""
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        local = int(environ.get("LOCAL_RANK", str(rank)))
    except ValueError as error:
        raise ConfigError(f"RANK, WORLD_SIZE, LOCAL_RANK: {error}") from error
    if not 0 <= rank < size:
        raise ConfigError(f"RANK: {rank} is none of {size}")
    return Place(rank, local, size, environ.get(MEETING, "env://"))


def forbid_inspection() -> None:
    """Keep other processes of the same user out of our environment, memory and open files.

    What runs an agent's commands beside us can read none of /proc/PID/environ, mem and fd, nor
    trace us; neither can a debugger without CAP_SYS_PTRACE. A program that we start is not covered:
    Linux lifts it at exec.
    """
    _prctl(PR_SET_DUMPABLE, 0)


@contextmanager
def _own_proc_files() -> Iterator[None]:
    """Linux gives the files of /proc/self to root while nobody may inspect the process."""
    hidden = _prctl(PR_GET_DUMPABLE, 0) == 0
    if hidden:
        _prctl(PR_SET_DUMPABLE, 1)
    try:
        yield
    finally:
        if hidden:
            _prctl(PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> int:
    """-1 where there is no such call."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return -1 if prctl is None else int(prctl(option, value, 0, 0, 0))


def process_began(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; tells a reused pid; None if it ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def session_nice() -> int | None:
    """How Linux weighs our session among others (autogroup); None where it does not."""
    try:
        return int(Path("/proc/self/autogroup").read_text().split()[-1])
    except (OSError, LookupError, ValueError):
        return None


def weigh_session(nice: int, pid: int | None = None) -> None:
    """Weigh our session, or that of a process, as so nice; a warning where Linux will not.

    To who is no administrator it grants one such wish of the whole machine in 100 ms.
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
                log.warning("session is not weighed", nice=nice, pid=pid, error=str(error))
                return
        time.sleep(AGAIN_S)


def unlocked(database: str | Path, locks: Path = LOCKS) -> str:
    """What a person does about an SQLite file that another process keeps locked, and which one.

    `locks` tells: the lock for writing lies on the index of the write-ahead log, or on the file
    itself. The holder is not to be seen from within another container.
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
    """Device and inode: the device that /proc/locks names is, on some file systems, another."""
    found = path.stat()
    return found.st_dev, found.st_ino


def _holds(pid: str, files: set[tuple[int, int]]) -> bool:
    """Whether a process has one of them open; so it may be of who is not ours to look into."""
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
    """The lines of /proc/locks: number, kind, mode, access, pid, device and inode, range."""
    try:
        return [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return []


def _command(pid: str, most: int = 60) -> str:
    """What a process was started as: its first `most` characters."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return "?"  # it has just ended, or is not ours to see
    line = " ".join(words.decode(errors="replace").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def resident_bytes() -> int:
    """What this process holds in memory; 0 where there is no /proc to tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
