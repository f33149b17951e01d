"""Workers of one run, whose only policies are served by a scripted engine behind HTTP."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from run_transitions import World

from agentrl.broker.api import Publisher, Waiting
from agentrl.broker.messages import EpisodeFinished, Message, RunEpisode
from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Dispatch
from agentrl.core.config.sections.episodes import Worker as WorkerConfig
from agentrl.core.config.sections.policies import Model
from agentrl.core.config.sections.tasks import Task
from agentrl.db.transitions import due_episodes
from agentrl.envs.contract import TaskSource
from agentrl.ops.processes.worker import worker_config
from agentrl.workers.worker import EpisodeWorker

Begin = Callable[..., EpisodeWorker]
MANY = 2


class Checking:
    """A publisher that notes what the row said at the moment of publishing, and may be away."""

    def __init__(self, inner: Publisher, world: World) -> None:
        self.seen: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self._inner, self._world = inner, world
        self.back = threading.Event()
        self.back.set()

    def publish(
        self, exchange: str, run_id: str, message: Message, *, waiting: Waiting | None = None
    ) -> None:
        assert isinstance(message, EpisodeFinished)
        self.seen.append(self._world.episode(message.trajectory.episode_id).state)
        self.meanwhile()
        while not self.back.wait(0.02):
            assert waiting is not None
            waiting(1.0)
        self._inner.publish(exchange, run_id, message, waiting=waiting)

    def close(self) -> None:
        self._inner.close()


def admit(world: World, item_ids: Sequence[str] = ("train-item-0",)) -> list[RunEpisode]:
    """One group of two for each item; its commands."""
    ids = world.admit(*range(len(item_ids)), size=2)
    for group_id, item_id in zip(ids, item_ids, strict=True):
        world.sql("UPDATE episodes SET item_id = :i WHERE group_id = :g", i=item_id, g=group_id)
    due = world.store.transact(
        lambda s: due_episodes.due_to_send(s, world.run_id, claim_timeout_s=60.0)
    )
    return [RunEpisode(run_id=world.run_id, episode_id=e, fence=f) for e, f in due]


def scripted_worker(
    model_dir: Path, world: World, publisher: Publisher, source: TaskSource, wait_s: float
) -> EpisodeWorker:
    """A worker that has not started. `wait_s`: for a policy."""
    config = Config(
        tasks={"dbbench": Task(max_turns=4)},
        model=Model(path=str(model_dir)),
        worker=WorkerConfig(concurrency=4, beat_s=0.1, lease_s=5.0, policy_wait_s=wait_s),
        dispatch=Dispatch(max_attempts=MANY),
    )
    return EpisodeWorker(
        worker_config(config), world.run_id, world.store, publisher, {"dbbench": source}
    )
