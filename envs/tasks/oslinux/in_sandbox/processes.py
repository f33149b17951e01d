"""Runs in a sandbox, as its first process: starts others, reads them within bounds, ends them.

Nothing here waits without a deadline. The standard library is all there is.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import resource
import select
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
FILE_BYTES = 256 << 20  # of one file that a child writes
LEFT_BYTES = 1 << 20  # read at most of what is left in a pipe when its writer is done
CHUNK = 1 << 16
FIRST_TO_DIE = b"1000"  # oom_score_adj of all but this process

Identity = tuple[int, int]  # pid, and start time in clock ticks: pids come again


class Head:
    """Keeps the first `limit` bytes of a pipe; reads and drops the rest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def add(self, chunk: bytes) -> None:
        self._bytes += chunk[: self._limit - len(self._bytes)]

    def text(self) -> str:
        return self._bytes.decode(errors="replace")


class Children:
    """All descendants of this process, which adopts and reaps orphans. One per process."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no child may trace it or open its files
        self._ended: dict[int, int] = {}
        self._ours: set[int] = set()
        self._wake, notify = os.pipe()
        for end in (self._wake, notify):
            os.set_blocking(end, False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, self._reap)
        signal.set_wakeup_fd(notify, warn_on_full_buffer=False)

    def spawn(self, argv: Sequence[str], files: Mapping[int, int], folder: str) -> int:
        """Start a session; return its leader's pid. `files`: descriptors. Raises OSError."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    _become(argv, files, folder)
                finally:
                    os._exit(127)
            self._ended.pop(pid, None)  # of an older child with this pid
            self._ours.add(pid)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        return pid

    def status(self, pid: int) -> int | None:
        """Return the exit status of a child that ended, or minus its signal."""
        return self._ended.get(pid)

    def pump(
        self,
        reads: Mapping[int, Head],
        done: Callable[[], bool],
        timeout_s: float,
        outgoing: Outgoing | None = None,
    ) -> bool:
        """Read and write until `done`, then read the rest. Returns False if that is too late."""
        deadline = time.monotonic() + timeout_s
        poller = select.poll()
        for descriptor in (self._wake, *reads):
            poller.register(descriptor, select.POLLIN)
        if outgoing is not None:
            poller.register(outgoing.descriptor, select.POLLOUT)
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for descriptor, _ in poller.poll(left * 1000):
                if outgoing is not None and descriptor == outgoing.descriptor:
                    more = outgoing.write()
                else:
                    more = _read(descriptor, reads.get(descriptor)) != b""
                if not more:
                    poller.unregister(descriptor)
        for descriptor, head in reads.items():
            _drain(descriptor, head)
        return True

    def living(self, besides: frozenset[Identity] = frozenset()) -> set[Identity]:
        """Return every live descendant, except `besides` and their descendants."""
        living: set[Identity] = set()
        above = {os.getpid()}
        parents = {each: parent for each, parent in _processes() if each not in besides}
        while fresh := {each for each, parent in parents.items() if parent in above} - living:
            living |= fresh
            above |= {pid for pid, _ in fresh}
        return living

    def sweep(self, keep: frozenset[Identity], timeout_s: float) -> bool:
        """Kill all but `keep` and their children, and what is born meanwhile.

        False where some would not die.
        """
        deadline = time.monotonic() + timeout_s
        first = os.getpid() == 1  # may signal everybody at once: a bomb has no gap to fork in
        while True:
            if first:  # before looking: a bomb leaves little time to do so
                _signal(-1, signal.SIGSTOP if keep else signal.SIGKILL)
            left = self.living(keep)
            for pid, _ in left:
                _signal(pid, signal.SIGKILL)
            if first:
                _signal(-1, signal.SIGCONT)
            if not left:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)

    def _reap(self, *_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._ours:
                    self._ended[pid] = os.waitstatus_to_exitcode(status)


class Outgoing:
    """Bytes for a pipe whose reader may be slow."""

    def __init__(self, descriptor: int, content: bytes) -> None:
        self.descriptor = descriptor
        self._content = content

    def write(self) -> bool:
        """Write what fits; return whether there is more."""
        try:
            self._content = self._content[os.write(self.descriptor, self._content) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self._content)


def pipe() -> tuple[int, int]:
    """Make a pipe whose reading end does not block."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing


def has_changes(root: str, since_ns: int) -> bool:
    """Return whether a file under `root` was made, changed or removed since; skips mounts."""
    folders = [root]
    while folders:
        folder = folders.pop()
        if folder in ("/proc", "/sys", "/dev"):
            continue
        try:
            if os.lstat(folder).st_ctime_ns >= since_ns:
                return True
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.stat(follow_symlinks=False).st_ctime_ns >= since_ns:
                    return True
        except FileNotFoundError:
            return True
    return False


def fingerprint(root: str, since_ns: int) -> str:
    """Hash the files under `root` that were made or changed since; skips mounts.

    Two machines whose scripts wrote the same have the same one.
    """
    digest = hashlib.sha256()
    for path in sorted(_changed_files(root, since_ns)):
        try:
            kind = os.lstat(path).st_mode
            digest.update(f"{path}\0{kind:o}\0".encode(errors="surrogateescape"))
            if stat.S_ISLNK(kind):
                digest.update(os.fsencode(Path(path).readlink()))
            elif stat.S_ISREG(kind):
                with Path(path).open("rb") as file:
                    while chunk := file.read(1 << 20):
                        digest.update(chunk)
        except OSError:  # it went meanwhile
            digest.update(b"gone")
    return digest.hexdigest()


def _changed_files(root: str, since_ns: int) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        if folder == "/":
            folders[:] = [name for name in folders if name not in ("proc", "sys", "dev")]
        for path in (folder, *(f"{folder.rstrip('/')}/{name}" for name in files)):
            with contextlib.suppress(OSError):
                if os.lstat(path).st_ctime_ns >= since_ns:
                    yield path


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, number)


def _become(argv: Sequence[str], files: Mapping[int, int], folder: str) -> None:
    """Run `argv` in the child, with an environment of its own."""
    os.setsid()
    for name in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    with contextlib.suppress(OSError):  # not ours to write where the driver is not root
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, FIRST_TO_DIE)
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    largest = FILE_BYTES if largest == resource.RLIM_INFINITY else min(largest, FILE_BYTES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # the agent may have removed it
        os.chdir(folder)
    for theirs, ours in files.items():
        os.dup2(ours, theirs)
    environment = {
        "HOME": os.environ.get("HOME", "/root"),
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "TERM": "dumb",
    }
    os.execvpe(argv[0], list(argv), environment)  # noqa: S606


def _processes() -> Iterator[tuple[Identity, int]]:
    """Return identity and parent of every process that is no zombie."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            yield (int(folder.name), int(fields[19])), int(fields[1])


def _read(descriptor: int, head: Head | None = None) -> bytes | None:
    """Return a chunk; empty at the end, None if there is nothing now."""
    try:
        chunk = os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None
    if head is not None:
        head.add(chunk)
    return chunk


def _drain(descriptor: int, head: Head) -> None:
    left = LEFT_BYTES
    while left > 0 and (chunk := _read(descriptor, head)):
        left -= len(chunk)
