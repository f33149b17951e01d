"""Runs many episodes in lockstep: the real episode loop, one thread at a time, deterministic.

    LockstepEpisode ─ask─▶ all open ones wait ─▶ serve(questions, in order) ─▶ the next ask

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
from agentrl.workers.attempt_errors import EpisodeStopped
from agentrl.workers.policies.client import Ask, Completion, PolicyClient

T = TypeVar("T")
OPEN_EPISODES = 512


@dataclass(frozen=True, slots=True)
class Question:
    """A strand's request for a completion of a policy."""

    policy: LivePolicy
    ask: Ask


Work = Callable[[PolicyClient], T]
Serve = Callable[[Sequence[Question]], Sequence[Completion]]


class _Client(PolicyClient):
    """Asks the strand's owner instead of a server."""

    def __init__(
        self,
        asked: "SimpleQueue[Question | None]",
        answers: "SimpleQueue[Completion | EpisodeStopped]",
    ) -> None:
        self._asked, self._answers = asked, answers

    def complete(self, policy: LivePolicy, ask: Ask, *, timeout_s: float) -> Completion:  # noqa: ARG002 - nobody else computes meanwhile
        self._asked.put(Question(policy, ask))
        answer = self._answers.get()
        if isinstance(answer, EpisodeStopped):
            raise answer
        return answer

    def close(self) -> None:
        """Do nothing."""


class LockstepEpisode(Generic[T]):
    """Runs `work` to its first question, then from answer to question until it returns."""

    def __init__(self, work: Work[T]) -> None:
        self._work = work
        self._asked: SimpleQueue[Question | None] = SimpleQueue()
        self._answers: SimpleQueue[Completion | EpisodeStopped] = SimpleQueue()
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="strand", daemon=True)
        self._thread.start()
        self.question = self._asked.get()

    def answer(self, completion: Completion) -> None:
        """Continue; `question` is then the next one, or None if the work is done."""
        self._answers.put(completion)
        self.question = self._asked.get()

    def result(self) -> T:
        """Return the result of the work, or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found[0]

    def stop(self) -> None:
        """Stop the waiting work; its `EpisodeStopped` is ignored."""
        if self.question is not None:
            self._answers.put(EpisodeStopped("the experiment is stopping"))
            self._thread.join()

    def _run(self) -> None:
        try:
            self._found.append(self._work(_Client(self._asked, self._answers)))
        except BaseException as error:
            self._error = error
        self._asked.put(None)


def play(works: Iterable[Work[T]], serve: Serve, at_once: int = OPEN_EPISODES) -> Iterator[T]:
    """Yield the results of all works in order of completion; at most `at_once` are open.

    Raises the error of a work; the other open works are then stopped, as on an interrupt.
    """
    waiting = iter(works)
    episodes: list[LockstepEpisode[T]] = []
    try:
        while True:
            episodes.extend(
                LockstepEpisode(work) for work in islice(waiting, at_once - len(episodes))
            )
            yield from (episode.result() for episode in episodes if episode.question is None)
            episodes = [episode for episode in episodes if episode.question is not None]
            if not episodes:
                return
            questions = [episode.question for episode in episodes if episode.question is not None]
            for episode, completion in zip(episodes, serve(questions), strict=True):
                episode.answer(completion)
    finally:
        for episode in episodes:
            episode.stop()
