"""Progress of a command on stderr: a bar on a terminal, elsewhere a line now and then."""

import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import Progress

from agentrl.ops.tables import lasting_console, print_line

EPISODES_S = 15.0  # between two lines that count episodes


class Lines:
    """Prints occasional lines of progress without a terminal."""

    def __init__(
        self, console: Console, every_s: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._every_s, self._clock = console, every_s, clock
        self._due = -math.inf

    def tell(self, line: str) -> None:
        """Print the line if enough time has passed."""
        now = self._clock()
        if not self._console.is_terminal and now >= self._due:
            self._due = now + self._every_s
            print_line(self._console, line)


class EpisodeProgress:
    """Shows how many episodes have ended, from any thread; nothing if `quiet`."""

    def __init__(
        self,
        total: int,
        *,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.done = total, 0
        console = console or lasting_console(sys.stderr)
        is_disabled = quiet or not console.is_terminal
        self._bar = Progress(console=console, disable=is_disabled, transient=True)
        self._line = self._bar.add_task("episodes", total=total)
        self._lines = None if quiet else Lines(console, EPISODES_S, clock)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def advance(self, count: int, what: str = "") -> None:
        """Count episodes that have ended. `what`: what they measure."""
        with self._lock:
            self.done += count
            self._bar.update(self._line, completed=self.done, description=what or "episodes")
            if self._lines is not None:
                name = f"{what}: " if what else ""
                self._lines.tell(f"{name}{self.done} of {self.total} episodes")

    def skip(self, count: int) -> None:
        """Leave out episodes that will not be played."""
        with self._lock:
            self.total -= count
            self._bar.update(self._line, total=self.total)
