"""Rank 0 and the others in threads of one process, with queues in place of the network."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from queue import Queue
from typing import Any, cast

import numpy as np
import pytest
from engine_updates import MakeTrajectory, ragged_batch
from fake_device_memory import FakeDeviceMemory

from agentrl.core.errors import CheckpointError
from agentrl.trainer.algorithm.advantages import Floats
from agentrl.trainer.algorithm.metrics import TokenRecord, measure
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import Gates
from agentrl.trainer.engines.pass_budget import PassBudget
from agentrl.trainer.engines.rank0 import (
    TOKEN_FIELDS,
    Rank0Coordinator,
    RankStep,
    RankWorker,
    decode_passes,
    encode_passes,
    follow_rank0,
)
from agentrl.trainer.engines.ranks import Ranks
from agentrl.trainer.model.packing import MicroBatch, balance_ranks

SIZE = 3
MOST = 60  # tokens of a pass
WAIT_S = 30.0


class Wire:
    """Bodies on their way: by sender and receiver; `None` as sender is rank 0 to all."""

    def __init__(self) -> None:
        self.queues: dict[tuple[int | None, int], Queue[bytes]] = defaultdict(Queue)
        self.carried: dict[tuple[int | None, int], list[bytes]] = defaultdict(list)

    def put(self, sender: int | None, receiver: int, body: bytes) -> None:
        self.carried[sender, receiver].append(body)
        self.queues[sender, receiver].put(body)


class QueuedRanks:
    """What rank 0 and followers use of Ranks."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self.rank, self.size = rank, SIZE
        self._wire = wire

    def broadcast(self, words: bytes) -> None:
        for receiver in range(1, SIZE):
            self._wire.put(None, receiver, words)

    def receive(self) -> bytes:
        return self._wire.queues[None, self.rank].get(timeout=WAIT_S)

    def send_to(self, rank: int, body: bytes) -> None:
        self._wire.put(self.rank, rank, body)

    def receive_from(self, rank: int) -> bytes:
        return self._wire.queues[rank, self.rank].get(timeout=WAIT_S)


class Echo(RankWorker):
    """Finds of each loss token its behaviour, its advantage, its temperature and its share.

    A pass takes a byte of `memory` for each token.
    """

    def __init__(self, memory: FakeDeviceMemory | None = None) -> None:
        self.given: list[MicroBatch] = []
        self.steps = 0
        self.memory = memory
        self.budget = PassBudget(MOST, 0.9, memory)

    def plan_tokens(self) -> int:
        return self.budget.plan()

    def split(self, batch: Batch, max_tokens: int) -> list[list[MicroBatch]]:
        return balance_ranks(batch, max_tokens, SIZE, attention=0.01)

    def peak_bytes(self) -> int:
        return self.budget.peak

    def accumulate(self, own: Sequence[MicroBatch]) -> Floats:
        self.given = list(own)
        for micro in own:
            held = self.memory.holding(micro.tokens.size) if self.memory else nullcontext()
            with self.budget.measure(micro), held:
                pass
        rows = [
            np.stack([m.behaviour, m.temperature, m.advantages, m.shares > 1, m.shares])
            for m in own
        ]
        return np.concatenate([np.zeros((len(TOKEN_FIELDS), 0)), *rows], axis=1).astype(np.float32)

    def step(self) -> RankStep:
        self.steps += 1
        return RankStep({"grad_norm": 2.0})


@contextmanager
def together(parts: Sequence[Echo], wire: Wire) -> Iterator[Rank0Coordinator]:
    """Rank 0 of these workers; the others follow it until the end."""

    def run(rank: int) -> None:
        follow_rank0(parts[rank], cast("Ranks", QueuedRanks(wire, rank)))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(1, SIZE)]
    for thread in threads:
        thread.start()
    with closing(Rank0Coordinator(parts[0], cast("Ranks", QueuedRanks(wire, 0)))) as lead:
        yield lead
    for thread in threads:
        thread.join(WAIT_S)


def test_each_rank_is_sent_its_own_micro_batches_and_metrics_are_of_all_of_them(
    make_trajectory: MakeTrajectory,
) -> None:
    batch, wire = ragged_batch(make_trajectory), Wire()
    parts = [Echo() for _ in range(SIZE)]
    with together(parts, wire) as lead:
        metrics = lead.update(batch)
    planned = parts[0].split(batch, MOST)
    for rank, part in enumerate(parts):
        assert _fields(part.given) == _fields(planned[rank])
    sent = [sum(map(len, wire.carried[0, rank])) for rank in range(1, SIZE)]
    assert sent == [len(encode_passes(planned[rank])) for rank in range(1, SIZE)]
    assert sum(map(len, wire.carried[None, 1])) < 100  # commands
    recorded = TokenRecord.empty(batch.tokens.size)
    chosen = np.flatnonzero(batch.loss_mask)
    kept = (batch.behaviour, batch.temperature, batch.advantages, batch.shares > 1, batch.shares)
    recorded.put(
        chosen, {name: each[chosen] for name, each in zip(TOKEN_FIELDS, kept, strict=True)}
    )
    expected = measure(batch, recorded) | {"grad_norm": 2.0}
    found = dict(metrics.values)
    assert found.pop("seconds") > 0
    assert found == pytest.approx(expected)


def test_no_rank_steps_before_rank_0_may_and_none_where_it_may_not(
    make_trajectory: MakeTrajectory,
) -> None:
    batch, wire = ragged_batch(make_trajectory), Wire()
    parts = [Echo() for _ in range(SIZE)]
    seen: list[list[int]] = []

    def look() -> None:
        seen.append([part.steps for part in parts])

    def refuse() -> None:
        look()
        raise CheckpointError("the former update may not be written")

    with together(parts, wire) as lead:
        lead.update(batch, Gates(before_step=look))
        with pytest.raises(CheckpointError):
            lead.update(batch, Gates(before_step=refuse))
    assert seen[0] == [0] * SIZE
    assert seen[1][0] == 1
    assert [part.steps for part in parts] == [1] * SIZE


def test_all_ranks_pack_for_the_rank_with_the_least_memory(
    make_trajectory: MakeTrajectory,
) -> None:
    batch = ragged_batch(make_trajectory)
    memories = [FakeDeviceMemory(100) for _ in range(SIZE)]
    parts = [Echo(memory) for memory in memories]
    with together(parts, Wire()) as lead:
        first = lead.update(batch).values
        before = [max(micro.tokens.size for micro in part.given) for part in parts]
        passes = len(parts[0].given)
        with memories[1].holding(60):
            second = lead.update(batch).values
            after = [max(micro.tokens.size for micro in part.given) for part in parts]
            counts = [len(part.given) for part in parts]
        third = lead.update(batch).values
    assert first["micro_batch_tokens"] == third["micro_batch_tokens"] == MOST
    assert first["micro_batch_peak_bytes"] == max(before) > 40
    assert second["micro_batch_tokens"] <= 0.9 * 40
    assert max(after) <= 0.9 * 40
    assert second["micro_batch_peak_bytes"] == max(after[1] + 60, *after)
    assert len(set(counts)) == 1
    assert counts[0] > passes
    assert [memory.failures for memory in memories] == [0] * SIZE


def test_without_packing_the_longest_trajectory_is_the_largest_pass_of_all_ranks(
    make_trajectory: MakeTrajectory,
) -> None:
    parts = [Echo(FakeDeviceMemory(100)) for _ in range(SIZE)]
    for part in parts:
        part.budget = PassBudget(1, 0.9, part.memory)
    with together(parts, Wire()) as lead:
        found = lead.update(ragged_batch(make_trajectory)).values
    longest = [max(micro.tokens.size for micro in part.given) for part in parts]
    assert found["micro_batch_tokens"] == max(longest) > 1


def test_what_is_no_list_of_micro_batches_is_refused(make_trajectory: MakeTrajectory) -> None:
    [passes] = balance_ranks(ragged_batch(make_trajectory), 1000, 1, 0.0)
    body = encode_passes(passes)
    assert _fields(decode_passes(body)) == _fields(passes)
    for wrong in (body[:-1], body.replace(b"owners", b"holder")):
        with pytest.raises(CheckpointError, match="another version"):
            decode_passes(wrong)


def _fields(passes: Sequence[MicroBatch]) -> list[dict[str, Any]]:
    listed = []
    for each in passes:
        arrays = {name: getattr(each, name) for name in MicroBatch.__slots__}
        listed.append({name: (np.asarray(a).dtype, list(a)) for name, a in arrays.items()})
    return listed
