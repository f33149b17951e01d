"""Handles Ctrl-C and SIGTERM for commands that keep their progress: they stop between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from agentrl.core.errors import AgentRLError

CONTINUE = "run the same command to continue"


class Interrupted(AgentRLError):
    """Ctrl-C or SIGTERM stopped a command; what it had finished is kept."""

    def __init__(self, text: str, *, hint: str = CONTINUE) -> None:
        super().__init__(text, hint=hint)


class Interruption:
    """Raises KeyboardInterrupt at a signal; within `whole()`, at its end instead."""

    def __init__(self) -> None:
        self._is_whole = False
        self._is_pending = False

    def interrupt(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Handle a signal."""
        if not self._is_whole:
            raise KeyboardInterrupt
        self._is_pending = True

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Let what runs within end before an interruption takes effect."""
        self._is_whole = True
        try:
            yield
        finally:
            self._is_whole = False
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt


@contextmanager
def handle_interruption() -> Iterator[Interruption]:
    """Take SIGINT and SIGTERM for the duration; on other threads than the main one, neither."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interruption.interrupt) for number in numbers]
    try:
        yield interruption
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
