"""An episode of four turns that changes its worker.

A death is an exception that nobody catches: its attempt leaves its row as it stands.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from judge_policies import JUDGE
from policy_servers import serve
from run_transitions import World

from agentrl.broker.api import Broker
from agentrl.broker.messages import EpisodeFinished, RunEpisode, decode
from agentrl.broker.queue_names import recorder_queue
from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Dispatch
from agentrl.core.config.sections.episodes import Worker as WorkerConfig
from agentrl.core.config.sections.policies import Model, PolicyServer
from agentrl.core.config.sections.tasks import Judge, Task
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import Reason, Status
from agentrl.db.store import Store
from agentrl.db.transitions import episodes
from agentrl.envs.contract import TaskSource
from agentrl.ops.processes.worker import worker_config
from agentrl.serving.engine_api import ModelLimits, Request
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.recorder import record_bodies
from agentrl.workers.worker import EpisodeWorker

ANSWERS = ["one", "two", "three"]
TURNS = len(ANSWERS) + 1


class Death(BaseException):
    """SIGKILL."""


def die() -> None:
    raise Death


class Script:
    """A policy that counts its turns. `before`: what happens while it samples its Nth."""

    def __init__(self) -> None:
        self.turns = 0
        self.before: dict[int, Callable[[], object]] = {}

    def __call__(self, request: Request) -> Sequence[int]:
        self.turns += 1
        self.before.get(self.turns, lambda: None)()
        return [6 + (self.turns * 7 + n) % 200 for n in range(4)] + sorted(request.stop_ids)[:1]


@contextmanager
def playing(store: Store, script: Callable[[Request], Sequence[int]]) -> Iterator[World]:
    """A run whose policy is the script."""
    begun = World.begin(store)
    checkpoint = {f"{begun.run_id}-v0": ("current", Path())}
    with serve(ScriptedEngine(script, limits=ModelLimits(300, 4096)), checkpoint) as server:
        begun.sql("UPDATE policy_servers SET url = :url", url=server.url)
        yield begun


class Workers:
    """Workers of one task, dbbench, which `source` provides; closed at the end."""

    def __init__(self, world: World, link: Broker, model_dir: Path) -> None:
        self.world, self.link, self._model_dir = world, link, model_dir
        self._started: list[EpisodeWorker] = []

    def start(
        self,
        source: TaskSource,
        journal: str = "steps",
        *,
        judge: Judge | None = None,
        attempts: int = 9,
    ) -> EpisodeWorker:
        """`judge`: a function, or the policy of `judge_policies.judge_policy`."""
        config = Config(
            tasks={"dbbench": Task(judge=judge or Judge())},
            policy=[PolicyServer(name="policy"), JUDGE],
            model=Model(path=str(self._model_dir)),
            worker=WorkerConfig(concurrency=4, beat_s=0.1, lease_s=5.0, journal=journal),  # type: ignore[arg-type]
            dispatch=Dispatch(max_attempts=attempts),
        )
        worker = EpisodeWorker(
            worker_config(config),
            self.world.run_id,
            self.world.store,
            self.link.publisher(),
            {"dbbench": source},
        )
        self._started.append(worker)
        worker.start()
        return worker

    def close(self) -> None:
        for worker in self._started:
            worker.close()


def first_command(world: World) -> RunEpisode:
    """Return the first attempt at the first member of a group of two."""
    (group_id,) = world.admit(0, size=2)
    world.sql("UPDATE episodes SET item_id = 'train-item-0' WHERE group_id = :g", g=group_id)
    return RunEpisode(run_id=world.run_id, episode_id=f"{group_id}-0", fence=1)


def next_command(command: RunEpisode) -> RunEpisode:
    return RunEpisode(run_id=command.run_id, episode_id=command.episode_id, fence=command.fence + 1)


def kill(world: World, worker: EpisodeWorker, command: RunEpisode) -> RunEpisode:
    """Run an attempt until its worker dies, and re-issue it; return the next command."""
    with pytest.raises(Death):
        worker.run(command)
    lose(world, command)
    return next_command(command)


def lose(world: World, command: RunEpisode) -> None:
    """Queue the next attempt, as if the lease of this one had expired."""
    claimed = episodes.ClaimedEpisode.of(world.episode(command.episode_id))
    assert world.store.transact(
        lambda s: episodes.retry(s, claimed, Reason.LOST, max_attempts=9, detail=Status.LOST)
    )


def record(world: World, link: Broker) -> None:
    """Record what was published."""
    with closing(link.consumer(recorder_queue(world.run_id))) as consumer:
        record_bodies(world.store, consumer, world.run_id, threading.Event(), drain=True)


def only_body(world: World, link: Broker) -> Trajectory:
    """Record what was published; return the only body."""
    record(world, link)
    ((wire,),) = world.ask("SELECT body FROM trajectories")
    message = decode(wire)
    assert isinstance(message, EpisodeFinished)
    return message.trajectory
