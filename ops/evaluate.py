"""Evaluation: policy × task × split, through the same episode loop and environments as training.

items ─▶ a pool of threads, an EpisodeLoop each ─▶ success with its 95 % interval, pass@k, turns
"""

import dataclasses
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from broker.messages import Trajectory
from core.config import Config
from core.errors import EnvironmentFailure, ItemError, PolicyError
from core.logging import get_logger
from core.statistics import interval
from core.types import CURRENT, SOLVED, TRAINABLE
from db.episodes import Claimed
from db.registry import LivePolicy
from envs.contract import Environment, Item, TaskSource
from workers.client import PolicyClient
from workers.episode import EpisodeLoop, Kit, Limits, OutOfTime
from workers.policies import Sampler
from workers.worker import Clock, kit

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
class Measured:
    """Success of one plan; `low`, `high`: Wilson's 95 % interval. Failed episodes are not in it."""

    plan: Plan
    episodes: int
    failed: int
    success: float
    low: float
    high: float
    reward: float
    turns: float
    tokens: float
    pass_at: Mapping[int, float]
    statuses: Mapping[str, int]


class FixedPool:
    """A pool of one policy."""

    def __init__(self, policy: LivePolicy) -> None:
        self._policy = policy

    def live(self) -> Sequence[LivePolicy]:
        return [self._policy]

    def refresh(self, timeout_s: float = 1.0) -> None:
        """Nothing else will come."""


class Evaluator:
    """Measures one policy."""

    def __init__(
        self, config: Config, policy: LivePolicy, sources: Mapping[str, TaskSource]
    ) -> None:
        self._config = config
        self._pool = FixedPool(policy)
        self._sources = sources
        self._stop = threading.Event()
        self._client = PolicyClient(
            token_env=config.policy_token_env(), connections=config.worker.concurrency
        )
        self._kit = kit(config, self._client, Clock(), self._stop)

    def measure(
        self, plans: Sequence[Plan], progress: Callable[[int], None] = lambda _done: None
    ) -> list[Measured]:
        """Run all plans at once; `progress` is called with the number of episodes that ended."""
        work = [(plan, item, repeat) for plan in plans for item, repeat in self._episodes(plan)]
        found: dict[int, list[tuple[str, Trajectory | None]]] = {id(plan): [] for plan in plans}
        done = 0
        with ThreadPoolExecutor(self._config.worker.concurrency) as threads:
            try:
                for plan, item, trajectory in threads.map(self._episode, work):
                    found[id(plan)].append((item.item_id, trajectory))
                    done += 1
                    progress(done)
            except BaseException:
                self._stop.set()
                threads.shutdown(cancel_futures=True)
                raise
        return [summary(plan, found[id(plan)]) for plan in plans]

    def close(self) -> None:
        self._client.close()

    def _episodes(self, plan: Plan) -> list[tuple[Item, int]]:
        items = self._sources[plan.task].items(plan.split)
        if not items:
            raise ItemError(f"task {plan.task}: split {plan.split} is empty")
        return [(item, n) for item in items[: plan.items] for n in range(plan.repeats)]

    def _episode(self, work: tuple[Plan, Item, int]) -> tuple[Plan, Item, Trajectory | None]:
        """One episode; None where the infrastructure failed `max_attempts` times."""
        plan, item, repeat = work
        source = self._sources[plan.task]
        sampling = msgspec.structs.replace(
            self._config.sampling, temperature=plan.temperature, strategy=CURRENT
        )
        limits = Limits(
            max_turns=self._config.tasks[plan.task].max_turns or source.max_turns,
            deadline_s=self._config.worker.attempt_deadline_s,
            policy_wait_s=self._config.worker.policy_wait_s,
        )
        name = f"evaluation-{plan.task}-{item.item_id}-{plan.temperature}-{repeat}"
        shared = dataclasses.replace(self._kit, sampling=sampling)
        for attempt in range(1, self._config.dispatch.max_attempts + 1):
            claimed = Claimed(name, item.item_id, repeat, plan.task, item.item_id, attempt, attempt)
            sampler = Sampler(self._pool, sampling, f"{self._config.run.seed}/{name}")
            try:
                trajectory = self._attempt(source.make(item), claimed, sampler, shared, limits)
            except (EnvironmentFailure, PolicyError, OutOfTime) as error:
                log.warning("attempt failed", episode_id=name, attempt=attempt, error=str(error))
            else:
                return plan, item, trajectory
        return plan, item, None

    def _attempt(
        self, environment: Environment, claimed: Claimed, sampler: Sampler, kit: Kit, limits: Limits
    ) -> Trajectory | None:
        try:
            trajectory = EpisodeLoop(claimed, "", environment, sampler, kit).run(limits)
        finally:
            environment.close()
        return trajectory if trajectory.status in TRAINABLE else None


def summary(plan: Plan, found: Sequence[tuple[str, Trajectory | None]]) -> Measured:
    """What the episodes of one plan say."""
    ended = [(item_id, body) for item_id, body in found if body is not None]
    wins: dict[str, list[bool]] = {}
    statuses: dict[str, int] = {}
    for item_id, body in ended:
        wins.setdefault(item_id, []).append(body.score >= SOLVED)
        statuses[body.status] = statuses.get(body.status, 0) + 1
    count = len(ended)
    won = sum(map(sum, wins.values()))
    low, high = interval(won, count)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= plan.repeats]
    return Measured(
        plan=plan,
        episodes=count,
        failed=len(found) - count,
        success=won / max(count, 1),
        low=low,
        high=high,
        reward=sum(body.reward for _, body in ended) / max(count, 1),
        turns=sum(body.turns for _, body in ended) / max(count, 1),
        tokens=sum(len(body) for _, body in ended) / max(count, 1),
        pass_at={k: pass_at(k, list(wins.values())) for k in ks},
        statuses=statuses,
    )


def pass_at(k: int, wins: Sequence[Sequence[bool]]) -> float:
    """Mean over items of the unbiased pass@k, 1 − C(n−c, k)/C(n, k) (arXiv:2107.03374, eq. 1)."""
    enough = [item for item in wins if len(item) >= k]
    if not enough:
        return 0.0
    chances = [1 - math.comb(len(w) - sum(w), k) / math.comb(len(w), k) for w in enough]
    return sum(chances) / len(chances)
