"""An agent program as a process: a clean environment, its item, and nothing left of it at the end.

Program ─▶ keeper.py (a session of its own) ─▶ the program ─▶ `ended`, on a thread of its own
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from core.errors import EnvironmentFailure

KEEPER = Path(__file__).with_name("keeper.py")
GRACE_S = 3.0  # between TERM and KILL
LAST_S = 1.5  # after those, for the keeper itself
INHERITED = ("PATH", "HOME", "LANG")  # of our environment; the rest is ours alone


class Ended(msgspec.Struct, frozen=True):
    """How a program ended. `code`: negative for a signal; `out`, `err`: the last MiB of each."""

    code: int
    out: str
    err: str


class Program:
    """One process, from its start to `close`."""

    def __init__(
        self,
        argv: Sequence[str],
        item: bytes,
        given: Mapping[str, str],
        ended: Callable[[Ended], None],
    ) -> None:
        """Start it. `item`: its standard input; `given`: its environment beside INHERITED.

        `ended` is called once, on another thread, unless `close` comes first. Raises
        EnvironmentFailure.
        """
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._closed = False
        self._ended = ended
        try:
            with tempfile.TemporaryFile() as told:
                told.write(item)
                told.seek(0)
                keep = [sys.executable, "-I", "-S", str(KEEPER), str(GRACE_S), str(told.fileno())]
                self._keeper = subprocess.Popen(
                    [*keep, *argv],
                    env=environment | dict(given),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(told.fileno(),),
                )
        except OSError as error:
            raise EnvironmentFailure(f"{argv[0]}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._wait, name="program", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it and all it started, within GRACE_S + LAST_S; safe to call twice."""
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
        """Read what the keeper tells; one that was killed tells nothing."""
        assert self._keeper.stdout is not None  # noqa: S101 - a pipe
        with self._keeper.stdout as stdout:
            told = stdout.read()
        try:
            ended = msgspec.json.decode(told, type=Ended)
        except msgspec.MsgspecError:
            ended = Ended(-signal.SIGKILL, "", "its keeper was killed")
        if not self._closed:
            self._ended(ended)
