"""Executors without threads: work is done at submission, for its result, or when a test says so."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any


class InlineExecutor(Executor):
    """Keeps exceptions for the caller of `result`, as others do; a killed process is killed."""

    def submit(self, fn: Callable[..., Any], /, *given: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        _do(future, partial(fn, *given, **options))
        return future


class DeferredExecutor(Executor):
    """Does the work in the caller of `result`: as late as a thread may do it."""

    def submit(self, fn: Callable[..., Any], /, *given: Any, **options: Any) -> Future[Any]:
        return DeferredFuture(partial(fn, *given, **options))


class DeferredFuture(Future[Any]):
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            _do(self, self._work)
        return super().result(timeout)


class HeldExecutor(Executor):
    """Does the work that it is given when `release` is called, and at once when it is open."""

    def __init__(self) -> None:
        self.is_open = False
        self._held: list[Callable[[], object]] = []

    def submit(self, fn: Callable[..., Any], /, *given: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._held.append(partial(_do, future, partial(fn, *given, **options)))
        if self.is_open:
            self.release()
        return future

    def release(self) -> None:
        while self._held:
            self._held.pop()()

    def open(self) -> None:
        self.is_open = True
        self.release()


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
