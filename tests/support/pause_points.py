"""Real code that stops where it waits, so that a test decides what happens next, and when.

    test ─ go(answer) ─▶ the process's thread runs alone ─ pause(what) ─▶ test
                         ─ kill() ─▶ Killed is raised where it waits; it does nothing more

One thread runs at a time, so that a run of the test is repeatable.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from sqlalchemy import Engine, event

ANSWER_S = 60.0  # a process that computes for so long hangs
_here = threading.local()


class Breakable(Protocol):
    """How a database's faults look to its driver (`protocol_stores.Database`)."""

    def lose_statement(self, connection: Any, cursor: Any, number: int) -> None: ...

    def lose_answer(self, connection: Any) -> None: ...

    def go_on(self) -> None: ...


class Killed(BaseException):
    """SIGKILL: what it meets does nothing more."""


class Process:
    """`work` in a thread of its own. `waiting`: what it paused with, None before it began."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._orders: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.waiting: tuple[str, Any] | None = None
        self.done = False
        self.dying = False

    def go(self, answer: object = None) -> bool:
        """On to its next pause or its end; whether it still lives. Raises what it raised."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._orders.put((True, answer))
        what, self.waiting = self._reports.get(timeout=ANSWER_S)
        self.done = what != "paused"
        if what == "raised":
            error, self.waiting = self.waiting, None
            raise error  # type: ignore[misc]
        return not self.done

    def kill(self) -> None:
        if self._thread.ident is not None and not self.done:
            self.dying = True
            self._orders.put((False, None))
            self._thread.join(ANSWER_S)
        self.done = True

    def _run(self) -> None:
        _here.process = self
        try:
            self._work()
        except BaseException as error:
            self._reports.put(("raised", error))
        else:
            self._reports.put(("ended", None))

    def pause(self, what: str, of: object) -> Any:
        if not self.dying:
            self._reports.put(("paused", (what, of)))
            alive, answer = self._orders.get()
            if alive:
                return answer
        raise Killed


def current() -> Process | None:
    return getattr(_here, "process", None)


def pause(what: str, of: object = None) -> Any:
    """Wait for the test to continue; return its answer."""
    process = current()
    assert process is not None
    return process.pause(what, of)


class Faults:
    """What befalls one statement or commit of a store: `arm` names the kind, and after how many.

    killed: before the statement · uncommitted: before a commit · committed: after it, before its
    answer · unanswered: the commit stands, its answer is an error · away: the statement's is one
    """

    KINDS = ("killed", "uncommitted", "committed", "unanswered", "away")

    def __init__(self, database: Breakable) -> None:
        self._database = database
        self._kind, self._left, self._number = "", 0, 0

    def attach(self, engine: Engine) -> None:
        """Watch the engine's statements and commits."""
        do_commit = engine.dialect.do_commit

        def commit(connection: Any) -> None:
            if self._kind == "uncommitted" and self._due():
                raise Killed
            do_commit(connection)
            if self._kind in ("committed", "unanswered") and (kind := self._due()):
                if kind == "committed":
                    raise Killed
                self._database.lose_answer(connection)

        event.listen(engine, "before_cursor_execute", self._statement)
        engine.dialect.do_commit = commit  # type: ignore[method-assign, assignment]

    def arm(self, fault: tuple[str, int] | None) -> None:
        """For what runs next. `fault`: the kind, and how many statements or commits it spares."""
        self._database.go_on()
        self._kind, self._left = fault or ("", 0)
        self._number = self._left

    def _statement(self, connection: Any, cursor: Any, *_: object) -> None:
        process = current()
        if process is not None and process.dying:
            raise Killed
        if self._kind in ("killed", "away") and (kind := self._due()):
            if kind == "killed":
                raise Killed
            self._database.lose_statement(connection, cursor, self._number)

    def _due(self) -> str:
        """The fault, once, if it comes now."""
        self._left -= 1
        if self._left >= 0:
            return ""
        kind, self._kind = self._kind, ""
        return kind
