"""An environment that hangs costs its own episode, and only for so long."""

import asyncio
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import NoReturn, TypeVar

import pytest

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.envs import registry
from agentrl.envs.call_timeouts import (
    Answer,
    TimeLimitedEnvironment,
    TimeLimitedSource,
    call_within,
)
from agentrl.envs.contract import Observation, Outcome, Tool, ToolCall, is_counting
from agentrl.envs.server.in_process import needs_container

T = TypeVar("T")


class Hanging:
    """Hangs in the named request until released; tells by which threads it was called."""

    tools: tuple[Tool, ...] = ()

    def __init__(self, where: str = "") -> None:
        self._where = where
        self.released, self.closed = threading.Event(), threading.Event()
        self.hangs = threading.Event()
        self.threads: set[int] = set()

    def start(self) -> Observation:
        return self._done("start", Observation(()))

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:  # noqa: ARG002
        return self._done("call", Outcome((), done=True, reward=1.0))

    def close(self) -> None:
        self._done("close", None)
        self.closed.set()

    def _done(self, request: str, answer: T) -> T:
        self.threads.add(threading.get_ident())
        if request == self._where:
            self.hangs.set()
            self.released.wait()
        return answer


class Told(Hanging):
    """Wants to know how long a turn was."""

    def sampled(self, prompt: int, completion: int, finish_reason: str, tokens: object) -> None:
        """Nothing is done with it."""


def test_an_environment_is_called_by_one_thread_and_answers_as_without_a_limit() -> None:
    inner = Hanging()
    environment = TimeLimitedEnvironment(lambda: inner, 60.0)
    assert environment.tools == ()
    assert environment.start() == Observation(())
    assert environment.call("") == Outcome((), done=True, reward=1.0)
    environment.close()
    environment.close()
    assert environment.tools == (), "as before it was closed"
    assert inner.closed.is_set()
    assert len(inner.threads) == 1


@pytest.mark.parametrize("request_", ["start", "call", "close"])
def test_a_request_that_hangs_fails_and_closes_the_environment_at_last(request_: str) -> None:
    inner = Hanging(request_)

    def get(answers: SimpleQueue[Answer], timeout: float) -> Answer:
        """Time is up once it hangs."""
        assert timeout == 7.0
        while True:
            try:
                return answers.get(timeout=0.01)
            except Empty:
                if inner.hangs.is_set():
                    raise

    environment = TimeLimitedEnvironment(lambda: inner, 7.0, get=get)

    def play() -> None:
        environment.start()
        environment.call("")
        environment.close()

    with pytest.raises(EnvironmentFailure, match="took over 7 s") as failed:
        play()
    assert failed.value.hint == "raise envs.call_timeout_s"
    with pytest.raises(EnvironmentFailure, match="took over 7 s"):
        environment.call("again")
    environment.close()
    assert not inner.closed.is_set(), "while it is called"
    inner.released.set()
    assert inner.closed.wait(60)


def test_what_an_environment_raises_and_what_else_it_has_pass_through() -> None:
    def broken() -> Hanging:
        raise ItemError("no such item")

    with pytest.raises(ItemError, match="no such item"):
        TimeLimitedEnvironment(broken, 60.0)
    for made, counts in ((Hanging(), False), (Told(), True)):
        environment = TimeLimitedEnvironment(lambda made=made: made, 60.0)
        assert is_counting(environment) == counts
        environment.close()


@pytest.mark.parametrize("error", [SystemExit("usage"), asyncio.CancelledError("usage")])
def test_what_would_end_the_thread_that_asks_is_a_failure_of_the_environment(
    error: BaseException,
) -> None:
    def fail() -> NoReturn:
        raise error

    inner = Hanging()
    environment = TimeLimitedEnvironment(lambda: inner, 60.0)
    inner.start = fail  # type: ignore[method-assign]
    for call in (
        lambda: TimeLimitedEnvironment(fail, 60.0),
        environment.start,
        lambda: call_within(fail, 60.0, "a query"),
    ):
        with pytest.raises(EnvironmentFailure, match=f"{type(error).__name__}: usage"):
            call()
    environment.close()
    assert inner.closed.is_set()


def test_a_source_that_asks_for_sandboxes_still_does() -> None:
    """A sandbox is asked for by the pools that it is given."""
    for task, wants in (("os", True), ("alfworld", False)):
        assert needs_container(TimeLimitedSource(registry.source(task, {"items": 1}), 1.0)) == wants
