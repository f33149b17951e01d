"""The trainer's loop of a planted run, from its groups to the end, in the test's own process."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
from run_transitions import World
from torch_device import DEVICE

from agentrl import broker
from agentrl.broker.messages import EpisodeFinished, Message
from agentrl.broker.queue_names import EVENTS, TRAJECTORIES, trainer_queue
from agentrl.checkpoints.checkpoint_store import CheckpointStore
from agentrl.core.config.config import Config
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Trainer
from agentrl.core.trajectory import Trajectory
from agentrl.ops.processes.trainer import ledger_config
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import OPEN, Gates, Hardware, Metrics, proceed
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.group_selection import InboxBounds
from agentrl.trainer.inbox import Inbox
from agentrl.trainer.ledger import Ledger
from agentrl.trainer.loop import train

TRAINER = Trainer(learning_rate=1e-3, task_norm_min_tokens=4, snapshot_every=10)
SETTINGS = resolve_settings(TRAINER)
BOUNDS = InboxBounds(
    min_groups=1, max_groups=1, max_staleness=9, max_lag=9, abnormal_reward=None, max_attempts=3
)


class HookedLearner(TorchLearner):
    """Calls `starting` of an update's number, from 1, when it begins, `during` when its gradient is
    computed, and `stepping` when it may step. `number`: of the newest, also if it failed.
    """

    def __init__(self, model: Path, during: dict[int, Callable[[], object]] | None = None) -> None:
        super().__init__(model, SETTINGS, Hardware(DEVICE))
        self.during = during or {}
        self.starting: dict[int, Callable[[], object]] = {}
        self.stepping: dict[int, Callable[[], object]] = {}
        self.number = 0

    def update(self, batch: Batch, gates: Gates = OPEN) -> Metrics:
        self.number += 1
        self.starting.get(self.number, proceed)()

        def settle() -> None:
            self.during.get(self.number, proceed)()
            gates.before_step()
            self.stepping.get(self.number, proceed)()

        return super().update(batch, replace(gates, before_step=settle))


def run_loop(
    world: World,
    learner: TorchLearner,
    home: Path,
    *,
    min_groups: int = 8,
    inbox: type[Inbox] = Inbox,
    bounds: InboxBounds = BOUNDS,
    stop: threading.Event | None = None,
    url: str = "",
    delivered: Sequence[Trajectory] = (),
    publishing: Executor | None = None,
    background: Executor | None = None,
    announce: Callable[[Message], object] | None = None,
    trainer: Trainer = TRAINER,
    **rules: float,
) -> None:
    """Do what the role `trainer` does, until its loop ends.

    `url`: of the checkpoints; `delivered`: bodies that the broker has; `publishing`, `background`,
    `announce`: see Ledger.
    """
    stop = stop or threading.Event()
    chosen = msgspec.structs.replace(trainer, min_groups=min_groups)
    config = Config(tasks={"dbbench": Task()}, run=Run(**rules), trainer=chosen)  # type: ignore[arg-type]
    with ExitStack() as stack:
        link = stack.enter_context(closing(broker.connect(f"sqlite:///{home / 'queue.db'}")))
        link.declare_run(world.run_id)
        publisher = stack.enter_context(closing(link.publisher()))
        for body in delivered:
            publisher.publish(TRAJECTORIES, world.run_id, EpisodeFinished(trajectory=body))
        consumer = stack.enter_context(closing(link.consumer(trainer_queue(world.run_id))))
        bodies = inbox(world.store, consumer, world.run_id, bounds)
        files = CheckpointStore(home / "checkpoints", home / "cache", url, stop)
        ledger = Ledger(
            ledger_config(config),
            world.run_id,
            world.store,
            announce or partial(publisher.publish, EVENTS, world.run_id),
            files,
            background=background,
            publishing=publishing,
        )
        train(bodies, learner, ledger, SETTINGS, stop)
