"""Runs many episodes in lockstep: the real episode loop, one thread at a time, deterministic.

    Strand ─ask─▶ all open ones wait ─▶ serve(questions, in order) ─▶ Strand goes on to its next ask

Each episode has a thread that runs only while its owner waits for it, like a coroutine around
blocking code. So the batches depend only on the order of the episodes.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from typing import Generic, TypeVar

from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.workers.episode import Stopped
from agentrl.workers.policies.client import Ask, Completion, PolicyClient

T = TypeVar("T")
OPEN_EPISODES = 512


@dataclass(frozen=True, slots=True)
class Question:
    """What a strand waits for: a completion of a policy."""

    policy: LivePolicy
    ask: Ask


Work = Callable[[PolicyClient], T]
Serve = Callable[[Sequence[Question]], Sequence[Completion]]


class _Client(PolicyClient):
    """Asks the strand's owner instead of a server."""

    def __init__(
        self, asked: "SimpleQueue[Question | None]", answers: "SimpleQueue[Completion | Stopped]"
    ) -> None:
        self._asked, self._answers = asked, answers

    def complete(self, policy: LivePolicy, ask: Ask, *, timeout_s: float) -> Completion:  # noqa: ARG002 - nobody else computes meanwhile
        self._asked.put(Question(policy, ask))
        answer = self._answers.get()
        if isinstance(answer, Stopped):
            raise answer
        return answer

    def close(self) -> None:
        """Nothing is open."""


class Strand(Generic[T]):
    """Runs `work` to its first question at once, then from answer to question until it returns."""

    def __init__(self, work: Work[T]) -> None:
        self._work = work
        self._asked: SimpleQueue[Question | None] = SimpleQueue()
        self._answers: SimpleQueue[Completion | Stopped] = SimpleQueue()
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="strand", daemon=True)
        self._thread.start()
        self.question = self._asked.get()

    def answer(self, completion: Completion) -> None:
        """Go on; `question` is then the next one, None once the work is done."""
        self._answers.put(completion)
        self.question = self._asked.get()

    def result(self) -> T:
        """What the work returned; raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found[0]

    def stop(self) -> None:
        """End the work where it waits; its `Stopped` is nobody's concern."""
        if self.question is not None:
            self._answers.put(Stopped("the experiment is stopping"))
            self._thread.join()

    def _run(self) -> None:
        try:
            self._found.append(self._work(_Client(self._asked, self._answers)))
        except BaseException as error:
            self._error = error
        self._asked.put(None)


def play(works: Iterable[Work[T]], serve: Serve, at_once: int = OPEN_EPISODES) -> Iterator[T]:
    """The results of all works, in the order in which they end; at most `at_once` are open.

    Raises what a work raises; the other open ones are stopped then, and on an interrupt.
    """
    waiting = iter(works)
    strands: list[Strand[T]] = []
    try:
        while True:
            strands.extend(Strand(work) for work in islice(waiting, at_once - len(strands)))
            yield from (strand.result() for strand in strands if strand.question is None)
            strands = [strand for strand in strands if strand.question is not None]
            if not strands:
                return
            questions = [strand.question for strand in strands if strand.question is not None]
            for strand, completion in zip(strands, serve(questions), strict=True):
                strand.answer(completion)
    finally:
        for strand in strands:
            strand.stop()
