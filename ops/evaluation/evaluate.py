"""Evaluates a policy on a task and split with the episode loop and environments of training.

items ─▶ a pool of threads, an EpisodeLoop each ─▶ Played, as they end ─▶ success with its 95 %
interval, pass@k, turns, tokens, cost
"""

import dataclasses
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass

import msgspec

from agentrl.core.config.config import Config
from agentrl.core.errors import (
    AgentRLError,
    EnvironmentFailure,
    ItemError,
    PolicyError,
    with_origin,
)
from agentrl.core.logging import get_logger
from agentrl.core.statistics import Estimate, estimate
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import CURRENT, Status
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.envs.contract import Item, TaskSource
from agentrl.envs.item_choice import index_items, sample_items
from agentrl.ops.evaluation.ending_event import EndingEvent
from agentrl.workers.attempt_errors import OutOfTime, PromptTooLong
from agentrl.workers.episode import EpisodeLoop
from agentrl.workers.episode_context import Clock, EpisodeLimits, make_context
from agentrl.workers.policies.client import PolicyClient
from agentrl.workers.policies.pool import Sampler
from agentrl.workers.turn import close_environment

log = get_logger()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. `repeats`: episodes of each item; `temperature` 0 is greedy."""

    task: str
    split: str
    temperature: float
    items: int
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """One episode to play; `repeat`: 0 … repeats - 1 of its item."""

    plan: Plan
    item: Item
    repeat: int

    @property
    def key(self) -> tuple[str, int]:
        return self.item.item_id, self.repeat


@dataclass(frozen=True, slots=True)
class EpisodeScore:
    """What is kept of an episode. `prompt_tokens`: read by the policy, over all its steps.

    `cost`: of its tokens at the prices of an external model, None without prices. `machine_s`: its
    share of the wall clock: an instant belongs equally to the episodes that end next.
    """

    item_id: str
    repeat: int
    status: Status
    reward: float
    score: float
    turns: int
    tokens: int
    prompt_tokens: int
    sampled_tokens: int
    seconds: float
    cost: float | None = None
    machine_s: float = 0.0

    @classmethod
    def of(cls, body: Trajectory, repeat: int) -> "EpisodeScore":
        return cls(
            item_id=body.item_id,
            repeat=repeat,
            status=body.status,
            reward=body.reward,
            score=body.score,
            turns=body.turns,
            tokens=len(body),
            prompt_tokens=sum(step.prompt_tokens for step in body.steps),
            sampled_tokens=sum(step.end - step.start for step in body.steps),
            seconds=body.finished_at - body.started_at,
        )


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Success of one plan. Failed episodes are in nothing but `failed`.

    `success`, `reward`, `score`: means over items. `low`, `high`: 95 % interval of the success for
    other items like these (`interval_over_clusters`). `by_repeat`: success of each repeat of all
    items; `over_repeats`: their mean with Student's interval, what another such run of the same
    items would give. `cost`, `machine_s`: sums.
    """

    plan: Plan
    episodes: int
    failed: int
    success: float
    low: float
    high: float
    reward: float
    score: float
    turns: float
    tokens: float
    pass_at: Mapping[int, float]
    statuses: Mapping[str, int]
    by_repeat: Sequence[float]
    cost: float | None
    machine_s: float

    @property
    def items(self) -> int:
        """The number of items asked for: a plan may name more than its split has."""
        return (self.episodes + self.failed) // self.plan.repeats

    @property
    def over_repeats(self) -> Estimate | None:
        """None of fewer than two repeats."""
        return estimate(self.by_repeat) if len(self.by_repeat) > 1 else None


class FixedPool:
    """A pool of one policy."""

    def __init__(self, policy: LivePolicy) -> None:
        self._policy = policy

    def live(self) -> Sequence[LivePolicy]:
        return [self._policy]

    def refresh(self, timeout_s: float = 1.0) -> None:
        """Nothing else will come."""


class EpisodePlayer(ABC):
    """Plays episodes on a pool of threads. `stop`: set from elsewhere, it ends episodes.

    `beat_s`: who asks for episodes waits no longer for an answer, which may be none. `abandon`:
    called when it stops, fails what the episodes wait for.
    """

    def __init__(
        self, config: Config, stop: threading.Event | None = None, *, beat_s: float = 1.0
    ) -> None:
        self.abandon: Callable[[], None] = lambda: None
        self._config = config
        self._beat_s = beat_s
        self._stop = EndingEvent(stop)
        self._lock = threading.Lock()
        self._unplayable: dict[Plan, list[str]] = {}  # reasons, one of each episode

    def play(self, work: Sequence[Work]) -> Iterator[list[tuple[Work, EpisodeScore | None]]]:
        """Episodes as they end, and nothing every `beat_s` until one does.

        None stands for one that the infrastructure failed `max_attempts` times, or of an item that
        cannot be played.
        Who stops asking, or raises Stopped by `stop`, waits until running episodes have noticed.
        """
        began = time.monotonic()
        with ThreadPoolExecutor(self._config.worker.concurrency) as threads:
            try:
                pending = {threads.submit(self._episode, each) for each in work}
                while pending:
                    ended, pending = wait(pending, self._beat_s, return_when=FIRST_COMPLETED)
                    if not ended:
                        yield []
                        continue
                    share, began = (time.monotonic() - began) / len(ended), time.monotonic()
                    found = [future.result() for future in ended]
                    yield [(each, played and _share_cost(played, share)) for each, played in found]
            except BaseException:
                self._stop.set()
                self.abandon()
                threads.shutdown(cancel_futures=True)
                raise

    def close(self) -> None:
        """End episodes that still run, with Stopped; say which could not be played at all."""
        self._stop.set()
        for plan, reasons in self._unplayable.items():
            log.warning(
                "Episodes cannot be played",
                task=plan.task,
                split=plan.split,
                episodes=len(reasons),
                one_of_them=reasons[0],
            )

    def _episode(self, work: Work) -> tuple[Work, EpisodeScore | None]:
        for attempt in range(1, self._config.dispatch.max_attempts + 1):
            try:
                return work, self._attempt(work, attempt)
            except (ItemError, PromptTooLong) as error:  # another attempt would not mend it
                with self._lock:
                    self._unplayable.setdefault(work.plan, []).append(str(error))
                break
            except (EnvironmentFailure, PolicyError, OutOfTime) as error:
                _log_failure(work, attempt, error)
            except AgentRLError:
                raise
            except Exception as error:  # a user's environment raises anything
                _log_failure(work, attempt, error)
        return work, None

    @abstractmethod
    def _attempt(self, work: Work, attempt: int) -> EpisodeScore:
        """Play an episode.

        Raises ItemError, EnvironmentFailure, PolicyError, OutOfTime, PromptTooLong, EpisodeStopped,
        and what the code of an environment raises.
        """


class Evaluator(EpisodePlayer):
    """Measures one policy."""

    def __init__(
        self,
        config: Config,
        policy: LivePolicy,
        sources: Mapping[str, TaskSource],
        stop: threading.Event | None = None,
        *,
        beat_s: float = 1.0,
    ) -> None:
        super().__init__(config, stop, beat_s=beat_s)
        self._pool = FixedPool(policy)
        self._sources = sources
        self._client = PolicyClient(
            token_env=config.policy_token_env(), connections=config.worker.concurrency
        )
        self._context = make_context(
            config.model, config.sampling, self._client, Clock(), self._stop
        )

    def close(self) -> None:
        super().close()
        self._client.close()

    def _attempt(self, work: Work, attempt: int) -> EpisodeScore:
        plan, item, repeat = work.plan, work.item, work.repeat
        source = self._sources[plan.task]
        sampling = msgspec.structs.replace(
            self._config.sampling, temperature=plan.temperature, strategy=CURRENT
        )
        task = self._config.tasks[plan.task]
        limits = EpisodeLimits.of(self._config.worker, task, source.max_turns)
        name = f"evaluation-{plan.task}-{item.item_id}-{plan.temperature}-{repeat}"
        shared = dataclasses.replace(self._context, sampling=sampling)
        claimed = ClaimedEpisode(
            name, item.item_id, repeat, plan.task, item.item_id, attempt, attempt
        )
        sampler = Sampler(self._pool, sampling, f"{self._config.run.seed}/{name}")
        environment = source.make(item)
        try:
            played = EpisodeLoop(claimed, "", environment, sampler, shared).run(limits)
        finally:
            close_environment(environment)
        return EpisodeScore.of(played, repeat)


def work_of(plan: Plan, source: TaskSource) -> list[Work]:
    """Return the episodes of a plan. Raises ItemError for a split without items, or an id twice."""
    items = [*index_items(source.items(plan.split)).values()]
    if not items:
        raise ItemError(f"task {plan.task}: split {plan.split} is empty")
    chosen = sample_items(items, plan.items)
    return [Work(plan, item, n) for item in chosen for n in range(plan.repeats)]


def _log_failure(work: Work, attempt: int, error: Exception) -> None:
    item, words = work.item.item_id, with_origin(error)
    log.warning("Attempt failed", item_id=item, attempt=attempt, error=words)


def _share_cost(played: EpisodeScore, share: float) -> EpisodeScore:
    return dataclasses.replace(played, machine_s=share)
