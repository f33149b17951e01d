"""A judge scores an episode that its environment has ended, as a whole or each of its turns.

    UnjudgedEpisode ─▶ ask ─▶ scores ─▶ Judgement ─▶ Trajectory with the judge's rewards
      in the journal    ▲  │ away, or no request is answered: wait, which counts as nothing
                        └──┘ unreadable, or others are answered: `tries` requests, then JudgeError,
                             never a reward

If a request is not answered and there are no others, a model is probed every `PROBE_S` seconds.
A worker that ends meanwhile leaves only the judging to the next one.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

import msgspec

from agentrl.core.config.sections.tasks import Judge as JudgeSection
from agentrl.core.errors import JudgeError, PolicyError
from agentrl.core.journal import UnjudgedEpisode
from agentrl.core.retry import Retry
from agentrl.core.telemetry import metrics
from agentrl.core.trajectory import Judgement, Trajectory
from agentrl.workers.policies.client import PROBE_S

REPLY_KEPT = 4000  # characters
STOP_LOOK_S = 0.2  # between two looks at the stop event while all places are taken

T = TypeVar("T")

Scores = tuple[float, ...]
"""Of the episode, or of each turn."""


class JudgeAway(PolicyError):
    """The judge cannot be asked now, or the process stops. Ask again later; that counts no try."""


class JudgeSilent(JudgeAway):
    """A request was not answered in time: the judge is away, unless it answers others meanwhile."""


class UnreadableReply(Exception):
    """Why a reply has no score."""


@dataclass(frozen=True, slots=True)
class EpisodeToJudge:
    """What a judge sees of an episode: variables of a prompt, second argument of a function.

    `item`: its content. `messages`: role and content of each, an assistant's as the policy wrote
    it; of an episode with branches, the last one. `reward`, `score`: the environment's. `by_turn`:
    each turn is scored; then a message has `turn`, the number of the turn that it is, or 0.
    """

    item: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    status: str
    reward: float
    score: float
    turns: int
    by_turn: bool = False

    @classmethod
    def of(
        cls, item: Mapping[str, Any], episode: UnjudgedEpisode, section: JudgeSection
    ) -> "EpisodeToJudge":
        """Return what the judge sees. `section`: its own.

        Its turns are in no single order if it has branches: it is then judged as a whole.
        """
        played = episode.trajectory
        by_turn = section.scores == "turns" and not played.has_branches
        messages = number_turns(episode.messages, played.turns) if by_turn else episode.messages
        numbers = played.reward, played.score, played.turns
        return cls(item, messages, played.status, *numbers, by_turn)


def number_turns(messages: Sequence[Mapping[str, str]], turns: int) -> list[dict[str, Any]]:
    """Add `turn` to each message: from 1 for the policy's turns, and 0 for the others.

    The policy's are the last of the assistant's messages: a task may begin with some of its own.
    """
    spoken = [place for place, each in enumerate(messages) if each["role"] == "assistant"]
    numbers = {place: turns - before for before, place in enumerate(reversed(spoken))}
    return [{**each, "turn": max(numbers.get(n, 0), 0)} for n, each in enumerate(messages)]


@dataclass(frozen=True, slots=True)
class Scorer:
    """A model or a function.

    `ask`: returns the score of the episode, or of each turn, and the reply. Raises JudgeAway,
    JudgeSilent, UnreadableReply. `probe`: returns if a short request is answered, else it raises
    JudgeAway; None: only other episodes show whether the judge is away.
    """

    name: str
    ask: Callable[[EpisodeToJudge], tuple[Scores, str]]
    probe: Callable[[], None] | None = None


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

    def __init__(
        self,
        task: str,
        section: JudgeSection,
        scorer: Scorer,
        retry: Retry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`retry`: repeats while the judge is away; its stop event ends all waits."""
        self._task = task
        self._section = section
        self._scorer = scorer
        self._retry = retry
        self._stop = retry.stop or threading.Event()
        self._places = threading.BoundedSemaphore(section.concurrency)
        self._limit = RateLimit(section.requests_per_minute)
        self._lock = threading.Lock()
        self._answered = 0  # requests
        self._probed_at = -math.inf
        self._clock = clock

    def judge(self, episode: EpisodeToJudge) -> Judgement:
        """Return the judgement; wait as long as the judge is away.

        Raises JudgeError after `tries` without a score, and JudgeAway once told to stop.
        """
        why = ""
        for _ in range(self._section.tries):
            try:
                scores, reply = self._retry.call(partial(self._ask, episode, self._answered))
                self._require_in_range(scores)
            except UnreadableReply as error:
                why = str(error)
                metrics.JUDGEMENTS.labels(task=self._task, status="unreadable").inc()
                continue
            metrics.JUDGEMENTS.labels(task=self._task, status="scored").inc()
            return Judgement(
                judge=self._scorer.name,
                score=fmean(scores),
                reply=reply[:REPLY_KEPT],
                environment_reward=episode.reward,
                turn_scores=scores if episode.by_turn else msgspec.UNSET,
            )
        raise JudgeError(
            f"judge {self._scorer.name} of task {self._task} gave no score in "
            f"{self._section.tries} tries: {why}",
            hint=f"compare tasks.{self._task}.judge with the reply",
        )

    def _ask(self, episode: EpisodeToJudge, answered: int) -> tuple[Scores, str]:
        """`answered`: requests that had been answered when the judge was first asked this one."""
        try:
            return self._send(partial(self._scorer.ask, episode))
        except JudgeSilent as error:
            if self._answered == answered:
                self._probe()
            if self._answered == answered:
                raise
            raise UnreadableReply(str(error)) from error

    def _probe(self) -> None:
        """Send a probe if one is due; if it is answered, the judge is not away."""
        with self._lock:
            now = self._clock()
            if self._scorer.probe is None or now - self._probed_at < PROBE_S:
                return
            self._probed_at = now
        with suppress(JudgeAway):
            self._send(self._scorer.probe)

    def _send(self, request: Callable[[], T]) -> T:
        """Send a request within the limits, and count its answer."""
        if self._stop.wait(self._limit.reserve()):
            raise JudgeAway("the worker is stopping")
        with self._place():
            answer = request()
        with self._lock:
            self._answered += 1
        return answer

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

    def _require_in_range(self, scores: Scores) -> None:
        low, high = self._section.low, self._section.high
        for score in scores:
            if not low <= score <= high:
                raise UnreadableReply(f"the score {score:g} is not between {low:g} and {high:g}")


def with_judgement(
    trajectory: Trajectory, judgement: Judgement, section: JudgeSection, finished_at: float
) -> Trajectory:
    """Return the trajectory with the judge's rewards.

    Each turn gets that of its score. The last turn and all branches get that of an episode's score.
    """
    own = section.environment_weight
    judged = section.weight * math.fsum(judgement.turn_scores or (judgement.score,))
    trajectory = msgspec.structs.replace(trajectory, judgement=judgement)
    scores = trajectory.judge_scores()
    steps = [
        msgspec.structs.replace(step, reward=own * step.reward + section.weight * (score or 0.0))
        for step, score in zip(trajectory.steps, scores, strict=True)
    ]
    branches = trajectory.branch_rewards and tuple(
        msgspec.structs.replace(each, reward=own * each.reward + judged)
        for each in trajectory.branch_rewards
    )
    return msgspec.structs.replace(
        trajectory,
        reward=own * trajectory.reward + judged,
        branch_rewards=branches,
        steps=tuple(steps),
        finished_at=finished_at,
    )
