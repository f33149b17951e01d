"""An outage of the database for one store of a test, not for the stores beside it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from agentrl.core.retry import Backoff, Retry
from agentrl.db.failures import is_transient
from agentrl.db.store import Store


class Outage:
    """Fails every statement of the store from `begin` to `end`."""

    def __init__(self, store: Store) -> None:
        self._away = threading.Event()
        self.refused = 0
        event.listen(store.engine, "before_cursor_execute", self._refuse)

    def begin(self) -> None:
        self._away.set()

    def end(self) -> None:
        self._away.clear()

    def _refuse(self, *_: object) -> None:
        if self._away.is_set():
            self.refused += 1
            raise away()


def away() -> OperationalError:
    return OperationalError("SELECT 1", None, Exception("server closed the connection"))


def forbid_waiting(store: Store) -> None:
    """Make the store give up at the first failure."""
    store.retry = Retry("store", is_transient, limit_s=0.0, backoff=Backoff(longest_s=0.1))


@contextmanager
def lose_next_answer(store: Store) -> Iterator[None]:
    """Let the store's next commit succeed and lose its answer."""
    lost = threading.Event()

    def lose(session: Session) -> None:
        bind: Any = session.get_bind()
        if bind.get_execution_options().get("agentrl_write") and not lost.is_set():
            lost.set()
            raise away()

    event.listen(store._write, "after_commit", lose)
    try:
        yield
    finally:
        event.remove(store._write, "after_commit", lose)
    assert lost.is_set()
