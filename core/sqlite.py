"""A SQLite file that several processes use."""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agentrl.core.retry import Backoff, Retry

PRIMARY_CODE = 0xFF  # these bits of an error code; the others are details
LOCKS = Path("/proc/locks")
PAUSES = Backoff(first_s=0.01, longest_s=0.1, silent=True)


def wait_until_unlocked(work: Callable[[], object], patience_s: float) -> None:
    """Repeat `work` while SQLite refuses it because of a lock. Raises sqlite3.Error.

    SQLite itself waits for locks, but not always where several connections give a file its
    write-ahead log or its tables.
    """
    Retry("SQLite", _is_locked, limit_s=patience_s, backoff=PAUSES).call(work)


def _is_locked(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE == sqlite3.SQLITE_BUSY


def lock_hint(database: str | Path, locks: Path = LOCKS) -> str:
    """Return a hint that names the process which holds the write lock of a database.

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
