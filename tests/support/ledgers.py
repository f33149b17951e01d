"""Ledgers of one run, one for each start of its trainer, and a learner that counts its updates."""

import errno
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from inline import InlineExecutor
from run_transitions import World

from agentrl.broker.api import Publisher
from agentrl.broker.queue_names import EVENTS
from agentrl.checkpoints.checkpoint_store import CheckpointStore
from agentrl.checkpoints.manifest import Probe, SaveReport
from agentrl.core.config.config import Config
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Trainer
from agentrl.ops.processes.trainer import ledger_config
from agentrl.trainer.batch import Batch, TakenGroups, TrainableGroup
from agentrl.trainer.checkpoint_writer import Position
from agentrl.trainer.engines.learner import OPEN, Gates, Metrics, WeightsWriter
from agentrl.trainer.ledger import Ledger
from agentrl.trainer.snapshots.snapshots import State

SNAPSHOT_EVERY = 2
METRICS = Metrics({"loss": 0.5})


class FullDiskTensors(Mapping[str, torch.Tensor]):
    """Tensors that cannot be written while `is_full()`."""

    def __init__(self, is_full: Callable[[], bool]) -> None:
        self._is_full = is_full
        self._tensors = {"count": torch.tensor([1])}

    def __getitem__(self, name: str) -> torch.Tensor:
        if self._is_full():
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class CountingLearner:
    """A learner whose weights are the number of its updates.

    `refusals`: how many checkpoints fail because the disk is full. `is_full`: whether the disk is
    too full for a snapshot.
    """

    def __init__(self, *, refusals: int = 0, is_full: Callable[[], bool] | None = None) -> None:
        self.count = 0
        self.refusals = refusals
        self.is_full = is_full

    def update(self, batch: Batch, gates: Gates = OPEN) -> Metrics:  # noqa: ARG002
        gates.before_step()
        self.count += 1
        return METRICS

    def copy_weights(self) -> WeightsWriter:
        count = self.count

        def write(directory: Path) -> SaveReport:
            if self.refusals > 0:
                self.refusals -= 1
                raise OSError(errno.ENOSPC, "No space left on device")
            (directory / "count.json").write_text(json.dumps(count))
            return SaveReport()

        return write

    def probe(self) -> Probe:
        return Probe([7, self.count], [-0.5])

    def state(self) -> State:
        if self.is_full is not None:
            return State(FullDiskTensors(self.is_full), {})
        return State({"count": torch.tensor([self.count])}, {})

    def load_state(self, state: State) -> None:
        self.count = int(state.tensors["count"][0])


class LedgerFactory:
    """Opens ledgers of one run. Their checkpoints lie in `home`/checkpoints."""

    def __init__(self, world: World, publisher: Publisher, home: Path) -> None:
        self.world, self.home = world, home
        self._announce = partial(publisher.publish, EVENTS, world.run_id)

    def open(
        self,
        config: Config | None = None,
        *,
        checkpoints: CheckpointStore | None = None,
        in_threads: bool = False,
        **rules: Any,
    ) -> Ledger:
        """Open a ledger that writes in the caller's thread unless `in_threads`.

        `rules`: fields of the section `run`, for the default configuration.
        """
        trainer = Trainer(snapshot_every=SNAPSHOT_EVERY)
        return Ledger(
            ledger_config(
                config or Config(tasks={"dbbench": Task()}, run=Run(**rules), trainer=trainer)
            ),
            self.world.run_id,
            self.world.store,
            self._announce,
            checkpoints or CheckpointStore(self.home / "checkpoints"),
            background=None if in_threads else InlineExecutor(),
            publishing=None if in_threads else InlineExecutor(),
        )

    def train(self, updates: int) -> tuple[Ledger, CountingLearner, Position]:
        """Start a trainer and commit so many updates."""
        ledger, learner = self.open(), CountingLearner()
        at = ledger.resume(learner)
        for position in range(updates):
            at = step(self.world, ledger, learner, at, position)
        return ledger, learner, at


def ready_groups(world: World, *positions: int) -> Sequence[TrainableGroup]:
    """Admit and finish a group at each position."""
    ready = [world.ready(position) for position in positions]
    return [TrainableGroup(bodies[0].group_id, "dbbench", tuple(bodies)) for bodies in ready]


def step(
    world: World, ledger: Ledger, learner: CountingLearner, at: Position, position: int
) -> Position:
    """Commit an update with a new group at `position`."""
    groups = ready_groups(world, position)
    learner.count += 1
    return commit(ledger, learner, at, TakenGroups(groups))


def commit(
    ledger: Ledger,
    learner: CountingLearner,
    at: Position,
    groups: TakenGroups,
    metrics: Metrics = METRICS,
) -> Position:
    """Publish an update and wait for its commit."""
    then = ledger.publish(learner, at, groups, metrics, ledger.started())
    ledger.settle()
    return then


def saved_counts(world: World) -> Mapping[int, int]:
    """Return what the checkpoint of each live version above 0 holds."""
    rows = world.ask("SELECT version, path FROM checkpoints WHERE state = 'live' AND version > 0")
    return {v: json.loads((Path(path) / "count.json").read_text()) for v, path in rows}
