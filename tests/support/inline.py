"""An executor without threads: what is submitted is done when `submit` returns."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class InlineExecutor(Executor):
    """Keeps exceptions for the caller of `result`, as others do; a killed process is killed."""

    def submit(self, fn: Callable[..., Any], /, *given: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*given, **options))
        except Exception as error:
            future.set_exception(error)
        return future
