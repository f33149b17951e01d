"""Rank 0 coordinates: only it uses the database and the broker; all ranks run its commands.

    rank 0   train(…, Lead) ─ update, save, … ─▶ RankWorker.update, …
                    └── command (and batch, or state) ──▶ every other rank: follow ─▶
                    RankWorker.update, …

A command is one msgpack body; the tensors of a state follow it one by one.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from agentrl.checkpoints.manifest import Probe
from agentrl.core.errors import CheckpointError, RankLost
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import Metrics
from agentrl.trainer.engines.ranks import Ranks
from agentrl.trainer.snapshots import State

ARRAYS: Mapping[str, str] = {  # of a Batch, with the types in which they travel
    "tokens": "<i8",
    "loss_mask": "|b1",
    "behaviour": "<f4",
    "temperature": "<f4",
    "advantages": "<f4",
    "fresh": "|b1",
    "shares": "<f4",
    "lengths": "<i8",
    "task_ids": "<i8",
    "rewards": "<f4",
    "successes": "|b1",
}


class RankWorker(Protocol):
    """One rank of a learner. All ranks make the same calls in the same order."""

    def update(self, batch: Batch) -> Metrics:
        """See Learner.update; every rank gets the same batch and returns the same."""

    def weights(self) -> dict[str, Tensor]:
        """Return the whole trained weights on the host, as saved, on rank 0; nothing on others."""

    def write(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Save the weights; called on rank 0 only."""

    def probe(self) -> Probe:
        """See Learner.probe."""

    def state(self) -> State:
        """See Learner.state; whole on rank 0, without tensors elsewhere."""

    def check_shapes(self, shapes: Mapping[str, list[int]]) -> None:
        """Raise CheckpointError if a state with these tensors does not fit."""

    def load_tensor(self, name: str, tensor: Tensor) -> None:
        """Take this rank's part of a tensor, which every rank gets whole."""

    def finish_load(self, values: Mapping[str, Any]) -> None:
        """Finish loading after all tensors; `values`: of the state."""


class RankCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of the commands of rank 0."""


class UpdateCommand(RankCommand, frozen=True):
    """`fields`: the arrays of the batch as bytes."""

    fields: dict[str, bytes]
    tasks: list[str]
    unnormalised: list[str]


class SaveCommand(RankCommand, frozen=True):
    pass


class QueryCommand(RankCommand, frozen=True):
    """`what`: probe or state."""

    what: str


class LoadCommand(RankCommand, frozen=True):
    """The tensors follow in this order. `shapes`, `types`: by name."""

    shapes: dict[str, list[int]]
    types: dict[str, str]
    values: dict[str, Any]


class EndCommand(RankCommand, frozen=True):
    pass


Command = UpdateCommand | SaveCommand | QueryCommand | LoadCommand | EndCommand


class Rank0Coordinator:
    """The Learner on rank 0, which sends its calls to the other ranks."""

    def __init__(self, worker: RankWorker, ranks: Ranks) -> None:
        self._worker = worker
        self._ranks = ranks

    def update(self, batch: Batch) -> Metrics:
        """See Learner.update."""
        self._broadcast(encode_batch(batch))
        return self._worker.update(batch)

    def save(self, directory: Path) -> None:
        """See Learner.save: every rank gives its shards, rank 0 writes."""
        self._broadcast(SaveCommand())
        self._worker.write(directory, self._worker.weights())

    def probe(self) -> Probe:
        """See Learner.probe."""
        self._broadcast(QueryCommand("probe"))
        return self._worker.probe()

    def state(self) -> State:
        """See Learner.state: whole, whatever the number of ranks."""
        self._broadcast(QueryCommand("state"))
        return self._worker.state()

    def load_state(self, state: State) -> None:
        """See Learner.load_state; accepts states of any engine and number of ranks."""
        shapes = {name: list(tensor.shape) for name, tensor in state.tensors.items()}
        self._worker.check_shapes(shapes)
        types = {name: str(t.dtype).removeprefix("torch.") for name, t in state.tensors.items()}
        self._broadcast(LoadCommand(shapes, types, dict(state.values)))
        for name, tensor in state.tensors.items():
            self._worker.load_tensor(name, self._ranks.broadcast_tensor(tensor))
        self._worker.finish_load(state.values)

    def end(self) -> None:
        """Stop the other ranks."""
        with suppress(RankLost):  # then there is nobody to send
            self._broadcast(EndCommand())

    def _broadcast(self, command: Command) -> None:
        self._ranks.broadcast(msgspec.msgpack.encode(command))


@contextmanager
def coordinate_ranks(worker: RankWorker, ranks: Ranks) -> Iterator[Rank0Coordinator]:
    """Context manager that stops the other ranks when rank 0 ends."""
    coordinator = Rank0Coordinator(worker, ranks)
    try:
        yield coordinator
    finally:
        coordinator.end()


def follow_rank0(worker: RankWorker, ranks: Ranks) -> None:
    """Run the commands of rank 0 until it stops. Raises RankLost if it is lost."""
    asked: Mapping[str, Callable[[], object]] = {"probe": worker.probe, "state": worker.state}
    while True:
        command = msgspec.msgpack.decode(ranks.receive(), type=Command)
        match command:
            case UpdateCommand():
                worker.update(decode_batch(command))
            case SaveCommand():
                worker.weights()
            case QueryCommand():
                asked[command.what]()
            case LoadCommand():
                _load(worker, ranks, command)
            case EndCommand():
                return


def _load(worker: RankWorker, ranks: Ranks, command: LoadCommand) -> None:
    worker.check_shapes(command.shapes)
    for name, shape in command.shapes.items():
        blank = torch.empty(shape, dtype=getattr(torch, command.types[name]))
        worker.load_tensor(name, ranks.broadcast_tensor(blank))
    worker.finish_load(command.values)


def encode_batch(batch: Batch) -> UpdateCommand:
    fields = {name: getattr(batch, name).astype(kind).tobytes() for name, kind in ARRAYS.items()}
    return UpdateCommand(fields, list(batch.tasks), sorted(batch.unnormalised))


def decode_batch(command: UpdateCommand) -> Batch:
    """Decode a batch. Raises CheckpointError for other arrays."""
    if command.fields.keys() != ARRAYS.keys():
        raise CheckpointError(
            "rank 0 runs another version of AgentRL",
            hint="install the same version on all machines",
        )
    arrays: dict[str, Any] = {
        name: np.frombuffer(command.fields[name], kind).copy() for name, kind in ARRAYS.items()
    }
    return Batch(**arrays, tasks=tuple(command.tasks), unnormalised=frozenset(command.unnormalised))
