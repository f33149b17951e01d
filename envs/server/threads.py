"""Reusable threads for work that may block or hang; starting a thread costs more than most turns.

    event loop ─▶ an idle thread, or a new one ─▶ the work ─▶ its result on the event loop

They are daemon threads, not an executor's, because an executor waits for its threads at exit. A
hanging thread is abandoned.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

Work = tuple[Callable[[], Any], "asyncio.Future[Any]"]
Hand = SimpleQueue[Work | None]


class Threads:
    """As many threads as simultaneous work. Used only by one event loop, on its thread."""

    def __init__(self) -> None:
        self._idle: list[Hand] = []
        self._closed = False

    def run(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """Run the work; its error is raised where the future is awaited."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._idle:
            hand = self._idle.pop()
        else:
            hand = SimpleQueue()
            threading.Thread(target=self._serve, args=(hand, loop), name="env", daemon=True).start()
        hand.put((function, future))
        return future

    def close(self) -> None:
        """End idle threads now, and the others after their work."""
        self._closed = True
        for hand in self._idle:
            hand.put(None)
        self._idle.clear()

    def _serve(self, hand: Hand, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
            while work := hand.get():
                function, future = work
                result, error = _outcome(function)
                loop.call_soon_threadsafe(self._done, hand, future, result, error)
                del work, function, future, result, error  # an idle thread keeps nothing alive

    def _done(
        self, hand: Hand, future: "asyncio.Future[Any]", result: Any, error: BaseException | None
    ) -> None:
        if self._closed:
            hand.put(None)
        else:
            self._idle.append(hand)
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # raised again where it is awaited
        is_plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
        return None, error if is_plain else RuntimeError(repr(error))  # not the event loop's own
