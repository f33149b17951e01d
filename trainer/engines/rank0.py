"""Rank 0 coordinates: only it uses the database and the broker; all ranks run its commands.

    rank 0   train(…, Rank0Coordinator) ─ update, … ─▶ RankWorker.accumulate, step, …
                    └── command (and a state) ──▶ every other rank: follow ─▶ accumulate, step, …
                    ◀── tokens that fit ────────┤
                    ├── its micro-batches ─────▶ each rank
                    ◀── values of its tokens ───┘

A command is one msgpack body; the tensors of a state follow it one by one. The micro-batches of an
update go to the rank that computes them, and to no other; each holds as many tokens as fit on the
rank with the least memory.
"""

import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from agentrl.checkpoints.manifest import Probe, SaveReport
from agentrl.core.errors import CheckpointError, RankLost
from agentrl.trainer.algorithm.advantages import Floats
from agentrl.trainer.algorithm.metrics import TokenRecord, measure, reverse_kls
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import OPEN, Gates, Metrics, WeightsWriter, repeat_steps
from agentrl.trainer.engines.pass_budget import memory_metrics
from agentrl.trainer.engines.ranks import Ranks
from agentrl.trainer.model.packing import MicroBatch
from agentrl.trainer.snapshots.snapshots import State

TOKEN_FIELDS = ("logprobs", "entropy", "loss", "clipped", "kl")  # of a TokenRecord
NOWHERE = np.zeros(0, np.int64)
NUMBER = struct.Struct("<q")  # tokens or bytes, on the wire
ARRAYS: Mapping[str, str] = {  # of a MicroBatch, with the types in which they travel
    "tokens": "<i4",
    "predicts": "<i8",
    "sources": "<i8",
    "owners": "<i4",
    "targets": "<i4",
    "behaviour": "<f4",
    "temperature": "<f4",
    "advantages": "<f4",
    "shares": "<f4",
    "teacher_logprobs": "<f4",
    "teacher_weights": "<f4",
    "proximal": "<f4",
}


@dataclass(frozen=True, slots=True, eq=False)
class RankStep:
    """The result of an optimizer step, or of a skipped one, on one rank.

    `values` and `skipped`: see Metrics; the same on all ranks.
    """

    values: Mapping[str, float]
    skipped: str = ""


class RankWorker(Protocol):
    """One rank of a learner. All ranks make the same calls in the same order."""

    def plan_tokens(self) -> int:
        """Begin an update; return the most tokens of a pass for which this rank has memory."""

    def split(self, batch: Batch, max_tokens: int) -> list[list[MicroBatch]]:
        """Split a batch into the micro-batches of each rank, equally many; called on rank 0 only.

        Every rank gets an empty list if the batch has no loss token.
        """

    def accumulate(self, own: Sequence[MicroBatch]) -> Floats:
        """Compute the gradient of an update; return [F, K] the TOKEN_FIELDS of this rank's K loss
        tokens, as its micro-batches `own` lie.
        """

    def peak_bytes(self) -> int:
        """Return the most memory that the passes of `accumulate` held; 0: not measured."""

    def step(self) -> RankStep:
        """Step with the gradient of `accumulate`, or skip it. All ranks skip together."""

    def weights(self) -> dict[str, Tensor]:
        """Return the whole trained weights on the host, as saved, on rank 0; nothing on others."""

    def write(self, directory: Path, weights: Mapping[str, Tensor]) -> SaveReport:
        """Write a copy, see WeightsWriter; called on rank 0 alone, by any thread."""

    def probe(self) -> Probe: ...

    def state(self) -> State:
        """See Learner.state; whole on rank 0, without tensors elsewhere."""

    def check_state(self, shapes: Mapping[str, list[int]], values: Mapping[str, Any]) -> None:
        """Raise CheckpointError if a state with these tensors and values does not fit."""

    def load_tensor(self, name: str, tensor: Tensor) -> None:
        """Take this rank's part of a tensor, which every rank gets whole."""

    def finish_load(self, values: Mapping[str, Any]) -> None:
        """Finish loading after all tensors; `values`: of the state."""


class RankCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of the commands of rank 0."""


class Call(RankCommand, frozen=True):
    """A call without arguments. After `accumulate` the micro-batches of each rank follow.

    An update is `plan`, `accumulate` and `step`. Before `step` rank 0 waits until the former update
    is committed. However long that takes, no collective operation waits for it.
    """

    what: Literal["plan", "accumulate", "step", "weights", "probe", "state", "end"]


class LoadCommand(RankCommand, frozen=True):
    """The tensors follow in this order. `shapes`, `types`: by name."""

    shapes: dict[str, list[int]]
    types: dict[str, str]
    values: dict[str, Any]


class PackedPass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An encoded MicroBatch. `arrays`: the fields `ARRAYS` as bytes."""

    lengths: list[int]
    parents: list[int]
    arrays: dict[str, bytes]


Command = Call | LoadCommand


class Rank0Coordinator:
    """The Learner on rank 0, which sends its calls to the other ranks."""

    def __init__(self, worker: RankWorker, ranks: Ranks, optimizer_steps: int = 1) -> None:
        self._worker = worker
        self._ranks = ranks
        self._optimizer_steps = optimizer_steps

    def update(self, batch: Batch, gates: Gates = OPEN) -> Metrics:
        return repeat_steps(self._step, batch, self._optimizer_steps, gates)

    def copy_weights(self) -> WeightsWriter:
        """See Learner.copy_weights: every rank gives its shards, rank 0 writes."""
        self._broadcast(Call("weights"))
        return partial(self._worker.write, weights=self._worker.weights())

    def probe(self) -> Probe:
        self._broadcast(Call("probe"))
        return self._worker.probe()

    def state(self) -> State:
        """See Learner.state: whole, whatever the number of ranks."""
        self._broadcast(Call("state"))
        return self._worker.state()

    def load_state(self, state: State) -> None:
        """See Learner.load_state; accepts states of any engine and number of ranks."""
        shapes = {name: list(tensor.shape) for name, tensor in state.tensors.items()}
        self._worker.check_state(shapes, state.values)
        types = {name: str(t.dtype).removeprefix("torch.") for name, t in state.tensors.items()}
        self._broadcast(LoadCommand(shapes, types, dict(state.values)))
        for name, tensor in state.tensors.items():
            self._worker.load_tensor(name, self._ranks.broadcast_tensor(tensor))
        self._worker.finish_load(state.values)

    def close(self) -> None:
        """Stop the other ranks."""
        with suppress(RankLost):  # then there is nobody to send
            self._broadcast(Call("end"))

    def _step(self, batch: Batch, gates: Gates) -> tuple[Metrics, TokenRecord]:
        began = time.perf_counter()
        tokens = self._plan_tokens()
        of_ranks = self._worker.split(batch, tokens)
        self._broadcast(Call("accumulate"))
        for rank, passes in enumerate(of_ranks[1:], start=1):
            self._ranks.send_to(rank, encode_passes(passes))
        results = [(self._worker.accumulate(of_ranks[0]), self._worker.peak_bytes())]
        results += [self._result_of(rank) for rank in range(1, self._ranks.size)]
        recorded = TokenRecord.empty(batch.tokens.size)
        for passes, (token_values, _) in zip(of_ranks, results, strict=True):
            places = np.concatenate([NOWHERE, *(micro.sources for micro in passes)])
            recorded.put(places, dict(zip(TOKEN_FIELDS, token_values, strict=True)))
        computed_s = time.perf_counter() - began
        gates.before_step()
        began = time.perf_counter()
        self._broadcast(Call("step"))
        step = self._worker.step()
        values = measure(batch, recorded) | dict(step.values)
        values |= {"seconds": computed_s + time.perf_counter() - began}
        largest = max([tokens, *(each.tokens.size for passes in of_ranks for each in passes)])
        values |= memory_metrics(largest, max(peak for _, peak in results))
        return Metrics(values, step.skipped, reverse_kls(batch, recorded)), recorded

    def _plan_tokens(self) -> int:
        """Return the tokens of a pass for which every rank has memory."""
        self._broadcast(Call("plan"))
        bodies = [self._ranks.receive_from(rank) for rank in range(1, self._ranks.size)]
        return min([self._worker.plan_tokens(), *(int(NUMBER.unpack(body)[0]) for body in bodies)])

    def _result_of(self, rank: int) -> tuple[Floats, int]:
        """Receive the results of another rank's `accumulate` and `peak_bytes`."""
        body = self._ranks.receive_from(rank)
        token_values = np.frombuffer(body, "<f4", offset=NUMBER.size)
        return token_values.reshape(len(TOKEN_FIELDS), -1), int(NUMBER.unpack_from(body)[0])

    def _broadcast(self, command: Command) -> None:
        self._ranks.broadcast(msgspec.msgpack.encode(command))


def follow_rank0(worker: RankWorker, ranks: Ranks) -> None:
    """Run the commands of rank 0 until it stops. Raises RankLost if it is lost."""
    while True:
        command = msgspec.msgpack.decode(ranks.receive(), type=Command)
        match command:
            case Call(what="plan"):
                ranks.send_to(0, NUMBER.pack(worker.plan_tokens()))
            case Call(what="accumulate"):
                token_values = worker.accumulate(decode_passes(ranks.receive_from(0)))
                peak = NUMBER.pack(worker.peak_bytes())
                ranks.send_to(0, peak + token_values.astype("<f4").tobytes())
            case Call(what="step"):
                worker.step()
            case Call(what="weights"):
                worker.weights()
            case Call(what="probe"):
                worker.probe()
            case Call(what="state"):
                worker.state()
            case LoadCommand():
                _load(worker, ranks, command)
            case Call(what="end"):
                return


def _load(worker: RankWorker, ranks: Ranks, command: LoadCommand) -> None:
    worker.check_state(command.shapes, command.values)
    for name, shape in command.shapes.items():
        blank = torch.empty(shape, dtype=getattr(torch, command.types[name]))
        worker.load_tensor(name, ranks.broadcast_tensor(blank))
    worker.finish_load(command.values)


def encode_passes(passes: Sequence[MicroBatch]) -> bytes:
    return msgspec.msgpack.encode(
        [
            PackedPass(
                list(each.lengths),
                list(each.parents),
                {name: getattr(each, name).astype(kind).tobytes() for name, kind in ARRAYS.items()},
            )
            for each in passes
        ]
    )


def decode_passes(body: bytes) -> list[MicroBatch]:
    """Decode the micro-batches of one rank. Raises CheckpointError if another version sent them."""
    try:
        packed = msgspec.msgpack.decode(body, type=list[PackedPass])
    except msgspec.MsgspecError as error:
        raise _other_version() from error
    if any(each.arrays.keys() != ARRAYS.keys() for each in packed):
        raise _other_version()
    return [
        MicroBatch(
            lengths=tuple(each.lengths),
            parents=tuple(each.parents),
            **{name: _unpacked(each.arrays[name], kind) for name, kind in ARRAYS.items()},
        )
        for each in packed
    ]


def _unpacked(content: bytes, kind: str) -> Any:
    """Decode an array; torch needs int64 for indices."""
    values = np.frombuffer(content, kind)
    return values.astype(np.int64 if values.dtype.kind == "i" else np.float32)


def _other_version() -> CheckpointError:
    return CheckpointError("rank 0 runs another version", hint="install one version everywhere")
