"""A judge scores an episode that its environment has ended.

    UnjudgedEpisode ─▶ ask ─▶ score ─▶ Judgement ─▶ Trajectory with the judge's reward
      in the journal    ▲  │ away: wait, which counts as nothing
                        └──┘ unreadable: `tries` requests, then JudgeError, never a reward

A worker that ends meanwhile leaves only the judging to the next one.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from agentrl.core.config.sections.tasks import Judge as JudgeSection
from agentrl.core.errors import JudgeError, PolicyError
from agentrl.core.journal import UnjudgedEpisode
from agentrl.core.retry import Retry
from agentrl.core.telemetry import metrics
from agentrl.core.trajectory import Judgement, Trajectory

REPLY_KEPT = 4000  # characters
STOP_LOOK_S = 0.2  # between two looks at the stop event while all places are taken


class JudgeAway(PolicyError):
    """The judge cannot be asked now, or the process stops. Ask again later; that counts no try."""


class UnreadableReply(Exception):
    """Why a reply has no score."""


@dataclass(frozen=True, slots=True)
class EpisodeToJudge:
    """What a judge sees of an episode: variables of a prompt, second argument of a function.

    `item`: its content. `messages`: role and content of each, an assistant's as the policy wrote
    it; of an episode with branches, the last one. `reward`, `score`: the environment's.
    """

    item: Mapping[str, Any]
    messages: Sequence[Mapping[str, str]]
    status: str
    reward: float
    score: float
    turns: int

    @classmethod
    def of(cls, item: Mapping[str, Any], episode: UnjudgedEpisode) -> "EpisodeToJudge":
        played = episode.trajectory
        return cls(item, episode.messages, played.status, played.reward, played.score, played.turns)


@dataclass(frozen=True, slots=True)
class Scorer:
    """A model or a function. `ask`: returns score and reply; raises JudgeAway, UnreadableReply."""

    name: str
    ask: Callable[[EpisodeToJudge], tuple[float, str]]


class RateLimit:
    """Spreads requests evenly over time. Thread-safe. `clock`: in seconds."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._gap_s = 60.0 / per_minute if per_minute else 0.0
        self._next = -math.inf
        self._lock = threading.Lock()
        self._clock = clock

    def reserve(self) -> float:
        """Reserve the next free moment; return the seconds until then."""
        with self._lock:
            now = self._clock()
            turn = max(now, self._next)
            self._next = turn + self._gap_s
        return turn - now


class Judge:
    """The judge of one task. Thread-safe."""

    def __init__(self, task: str, section: JudgeSection, scorer: Scorer, retry: Retry) -> None:
        """`retry`: repeats while the judge is away; its stop event ends all waits."""
        self._task = task
        self._section = section
        self._scorer = scorer
        self._retry = retry
        self._stop = retry.stop or threading.Event()
        self._places = threading.BoundedSemaphore(section.concurrency)
        self._limit = RateLimit(section.requests_per_minute)

    def judge(self, episode: EpisodeToJudge) -> Judgement:
        """Return the judgement; wait as long as the judge is away.

        Raises JudgeError after `tries` without a score, and JudgeAway once told to stop.
        """
        why = ""
        for _ in range(self._section.tries):
            try:
                score, reply = self._retry.call(partial(self._ask, episode))
                self._require_in_range(score)
            except UnreadableReply as error:
                why = str(error)
                metrics.JUDGEMENTS.labels(task=self._task, status="unreadable").inc()
                continue
            metrics.JUDGEMENTS.labels(task=self._task, status="scored").inc()
            return Judgement(
                judge=self._scorer.name,
                score=score,
                reply=reply[:REPLY_KEPT],
                environment_reward=episode.reward,
            )
        raise JudgeError(
            f"judge {self._scorer.name} of task {self._task} gave no score in "
            f"{self._section.tries} tries: {why}",
            hint=f"compare tasks.{self._task}.judge with the reply",
        )

    def _ask(self, episode: EpisodeToJudge) -> tuple[float, str]:
        if self._stop.wait(self._limit.reserve()):
            raise JudgeAway("the worker is stopping")
        with self._place():
            return self._scorer.ask(episode)

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Hold one of the places for requests at the same time. Raises JudgeAway if stopped."""
        while not self._places.acquire(timeout=STOP_LOOK_S):
            if self._stop.is_set():
                raise JudgeAway("the worker is stopping")
        try:
            yield
        finally:
            self._places.release()

    def _require_in_range(self, score: float) -> None:
        low, high = self._section.low, self._section.high
        if not low <= score <= high:
            raise UnreadableReply(f"the score {score:g} is not between {low:g} and {high:g}")


def with_judgement(
    trajectory: Trajectory, judgement: Judgement, section: JudgeSection, finished_at: float
) -> Trajectory:
    """Return the trajectory with the judge's reward, which the last turn and all branches get."""
    own = section.environment_weight
    judged = section.weight * judgement.score
    steps = [msgspec.structs.replace(s, reward=own * s.reward) for s in trajectory.steps]
    branches = trajectory.branch_rewards and tuple(
        msgspec.structs.replace(each, reward=own * each.reward + judged)
        for each in trajectory.branch_rewards
    )
    return msgspec.structs.replace(
        trajectory,
        reward=own * trajectory.reward + judged,
        branch_rewards=branches,
        steps=tuple(steps),
        judgement=judgement,
        finished_at=finished_at,
    )
