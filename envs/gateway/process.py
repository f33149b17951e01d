"""Runs an agent program as a process with a clean environment, and leaves nothing of it behind.

Program ─▶ program_guard.py (a session of its own) ─▶ the program ─▶ `ended`, on a thread of its own

It can neither inspect our processes nor read our secret files. If we are root, it runs as its own
user, or, if its files are not readable for others, as root without capabilities.
"""

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from agentrl.core.config.secrets import secret_files
from agentrl.core.errors import EnvironmentFailure
from agentrl.core.logging import get_logger

KEEPER = Path(__file__).with_name("program_guard.py")
GRACE_S = 3.0  # between TERM and KILL
LAST_S = 1.5  # after those, for the keeper itself
INHERITED = ("PATH", "HOME", "LANG")  # of our environment; the rest is ours alone

log = get_logger()


def confine_command(argv: Sequence[str]) -> list[str]:
    """Return the command that runs a program of a model, which can neither inspect our processes
    nor read our secret files. It runs as our user; a root loses its capabilities.
    """
    return [sys.executable, "-I", "-S", str(KEEPER), "exec", ":".join(secret_files()), *argv]


class ProgramEnd(msgspec.Struct, frozen=True):
    """How a program ended. `code`: negative for a signal. `out`, `err`: the last MiB of each."""

    code: int
    out: str
    err: str


class Program:
    """One process, from its start to `close`."""

    def __init__(
        self,
        argv: Sequence[str],
        item: bytes,
        variables: Mapping[str, str],
        report_end: Callable[[ProgramEnd], None],
        *,
        own_user: bool = True,
    ) -> None:
        """Start the program. `item`: its standard input. `variables`: those besides INHERITED.

        `report_end` is called once, on another thread, unless `close` comes first. `own_user`: if
        we are root, run it as its own user, if that user can read it. Raises EnvironmentFailure.
        """
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._closed = False
        self._report_end = report_end
        try:
            # Anybody may open it again.
            with os.fdopen(os.memfd_create("item"), "w+b") as item_file:
                item_file.write(item)
                item_file.seek(0)
                own = "1" if own_user and os.getuid() == 0 and _open_to_others(argv) else "0"
                settings = [str(GRACE_S), str(item_file.fileno()), own, ":".join(secret_files())]
                self._keeper = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(KEEPER), *settings, *argv],
                    env=environment | dict(variables),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(item_file.fileno(),),
                )
        except OSError as error:
            raise EnvironmentFailure(f"{argv[0]}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._wait, name="program", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the program and its children within GRACE_S + LAST_S; safe to call twice."""
        self._closed = True
        stdin = self._keeper.stdin
        if stdin is not None and not stdin.closed:
            stdin.close()
        try:
            self._keeper.wait(GRACE_S + LAST_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._keeper.pid, signal.SIGKILL)
            self._keeper.wait(LAST_S)
        self._thread.join(LAST_S)

    def _wait(self) -> None:
        """Read the keeper's report; a killed keeper sends none."""
        assert self._keeper.stdout is not None  # noqa: S101 - a pipe
        with self._keeper.stdout as stdout:
            report = stdout.read()
        try:
            end = msgspec.json.decode(report, type=ProgramEnd)
        except msgspec.MsgspecError:
            end = ProgramEnd(-signal.SIGKILL, "", "its keeper was killed")
        if not self._closed:
            self._report_end(end)


def _open_to_others(argv: Sequence[str]) -> bool:
    """Return whether any user can run it: the program, files in its arguments, and our folder."""
    files = [path for path in map(Path, argv[1:]) if _exists(path)]
    paths = [Path.cwd(), Path(shutil.which(argv[0]) or argv[0]), *files]
    closed = [path for path in paths if not _is_reachable(path.resolve())]
    if closed:
        _warn_once(str(closed[0]))
    return not closed


def _exists(path: Path) -> bool:
    with suppress(OSError, ValueError):  # an argument may be any text
        return path.exists()
    return False


def _is_reachable(real: Path) -> bool:
    needed = stat.S_IXOTH if real.is_dir() else stat.S_IROTH
    return (not real.exists() or bool(real.stat().st_mode & needed)) and all(
        folder.stat().st_mode & stat.S_IXOTH for folder in real.parents if folder.exists()
    )


@cache
def _warn_once(path: str) -> None:
    log.warning("File of an agent program not readable for its user", path=path)
