"""The tokens of a pass follow the memory that earlier passes needed, on a fake device."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from engine_updates import BASE_SETTINGS, MakeTrajectory, flatten, relative_distance
from fake_device_memory import FakeDeviceMemory
from torch import Tensor

from agentrl.core.errors import ConfigError
from agentrl.trainer.algorithm.advantages import Floats
from agentrl.trainer.algorithm.objective import Objective
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch
from agentrl.trainer.engines import torch_learner
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.pass_budget import (
    UPDATES,
    MeasuredPass,
    PassBudget,
    find_memory,
    tokens_within,
)
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.packing import MicroBatch
from agentrl.trainer.model.trainable_model import trainable_parameters

MOST = 10_000  # configured tokens: every batch here in one pass
MEMBERS = 12
Cost = Callable[[MicroBatch], int]


class CountedObjective(Objective):
    """Takes `cost` bytes of `memory` for each pass, and records its tokens."""

    memory: ClassVar[FakeDeviceMemory]
    cost: ClassVar[Cost]
    passes: ClassVar[list[int]]

    def loss(self, model: Any, micro: MicroBatch) -> tuple[Tensor, dict[str, Floats]]:
        with self.memory.holding(type(self).cost(micro)):
            self.passes.append(micro.tokens.size)
            return super().loss(model, micro)


def per_token(micro: MicroBatch) -> int:
    return 60 * micro.tokens.size


def per_token_and_length(micro: MicroBatch) -> int:
    return (40 + max(micro.lengths)) * micro.tokens.size


def batch_of(make_trajectory: MakeTrajectory, length: int, members: int = MEMBERS) -> Batch:
    """Trajectories whose second half is sampled; all but the last token of each are fed."""
    group = tuple(
        make_trajectory([(length // 2, length)], length, reward=float(n % 2), seed=n)
        for n in range(members)
    )
    return assemble_batch([TrainableGroup("g", "db", group)], BASE_SETTINGS)


@pytest.fixture
def learner_on(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TorchLearner]:
    def make(
        memory: FakeDeviceMemory, cost: Cost, most: int = MOST, gradients: int = 0
    ) -> TorchLearner:
        kept: dict[str, Any] = {"memory": memory, "cost": staticmethod(cost), "passes": []}
        monkeypatch.setattr(torch_learner, "Objective", type("Counted", (CountedObjective,), kept))
        settings = replace(BASE_SETTINGS, micro_batch_tokens=most)
        learner = TorchLearner(tiny, settings, Hardware(), memory)
        weights = trainable_parameters(learner._model).values()
        memory.gradients = lambda: gradients * any(each.grad is not None for each in weights)
        return learner

    return make


def passes_of(learner: TorchLearner) -> list[int]:
    """Return the tokens of the passes that began."""
    assert isinstance(learner._objective, CountedObjective)
    return learner._objective.passes


def budgets(learner: TorchLearner, batches: Sequence[Batch]) -> list[float]:
    """Update with each batch; return the most tokens of a pass of each."""
    return [learner.update(batch).values["micro_batch_tokens"] for batch in batches]


def test_growing_contexts_lower_the_budget_before_memory_runs_out_and_shorter_ones_raise_it(
    learner_on: Callable[..., TorchLearner], make_trajectory: MakeTrajectory
) -> None:
    memory = FakeDeviceMemory(25_000)
    learner = learner_on(memory, per_token_and_length)
    lengths = [round(20 * 1.08**n) for n in range(12)]
    assert lengths[-1] == 47
    last = batch_of(make_trajectory, lengths[-1])
    assert sum(last.lengths - 1) * (40 + 46) > memory.size  # it does not fit into one pass
    growing = budgets(learner, [batch_of(make_trajectory, length) for length in lengths])
    assert growing[0] == MOST
    assert growing[-1] < 46 * MEMBERS
    assert growing[1:] == sorted(growing[1:], reverse=True)
    shrunk = budgets(learner, [batch_of(make_trajectory, 20)] * 5)
    assert shrunk[-1] > 1.25 * shrunk[0]
    assert memory.failures == 0


def test_without_packing_the_longest_trajectory_is_the_largest_pass(
    tiny: Path, make_trajectory: MakeTrajectory
) -> None:
    apart, memory = replace(BASE_SETTINGS, packing=False), FakeDeviceMemory(1000)
    learner = TorchLearner(tiny, apart, Hardware(), memory)
    with memory.holding(1):
        assert budgets(learner, [batch_of(make_trajectory, 20)] * 2) == [19, 19]


def test_memory_that_others_take_lowers_the_budget_and_what_they_give_back_raises_it(
    learner_on: Callable[..., TorchLearner], make_trajectory: MakeTrajectory
) -> None:
    """As AdamW's moments after the first update, and as another process."""
    memory, batch = FakeDeviceMemory(60 * 400), batch_of(make_trajectory, 31)  # 360 tokens
    learner = learner_on(memory, per_token)
    assert learner.update(batch).values["micro_batch_tokens"] == MOST
    with memory.holding(60 * 100):
        found = learner.update(batch).values
        assert found["micro_batch_tokens"] == 360 - 90 * 2  # half of the bytes may be fixed
        assert found["micro_batch_peak_bytes"] == 60 * (100 + max(passes_of(learner)[1:]))
        assert budgets(learner, [batch]) == [0.9 * 300]  # no fixed part was seen
    assert budgets(learner, [batch] * 5)[-1] == 0.9 * 400
    assert memory.failures == 0


def test_memory_that_runs_out_halves_once_and_the_update_is_whole(
    learner_on: Callable[..., TorchLearner], tiny: Path, make_trajectory: MakeTrajectory
) -> None:
    memory, batch = FakeDeviceMemory(60 * 300), batch_of(make_trajectory, 31)
    plain = TorchLearner(tiny, replace(BASE_SETTINGS, micro_batch_tokens=MOST), Hardware())
    learner = learner_on(memory, per_token)
    found, expected = learner.update(batch), plain.update(batch)
    assert (memory.failures, found.skipped) == (1, "")
    assert passes_of(learner) == [180, 180]
    assert found.values["micro_batch_tokens"] == 180
    assert found.values["grad_norm"] == pytest.approx(expected.values["grad_norm"], rel=1e-5)
    later = budgets(learner, [batch] * 6)
    assert later[-1] == 0.9 * 300
    for _ in range(6):
        plain.update(batch)
    assert memory.failures == 1
    ours, theirs = (flatten(each.state().tensors, "weights/") for each in (learner, plain))
    assert relative_distance(ours, theirs) < 1e-5


def test_without_counters_a_halved_pass_stays_halved(
    learner_on: Callable[..., TorchLearner], make_trajectory: MakeTrajectory
) -> None:
    memory, batch = FakeDeviceMemory(60 * 300), batch_of(make_trajectory, 31)
    learner = learner_on(memory, per_token)
    learner._budget = PassBudget(MOST, 0.9, memory=None)
    for _ in range(UPDATES + 2):
        assert learner.update(batch).skipped == ""
    assert set(passes_of(learner)) == {180}
    assert memory.failures == 1


def test_a_trajectory_that_does_not_fit_into_memory_is_one_clear_error(
    learner_on: Callable[..., TorchLearner], make_trajectory: MakeTrajectory
) -> None:
    learner = learner_on(FakeDeviceMemory(60 * 20), per_token)
    before = flatten(learner.state().tensors, "weights/")
    with pytest.raises(ConfigError, match=r"a trajectory of 30 tokens does not fit .* 1 GiB\.$"):
        learner.update(batch_of(make_trajectory, 31))
    assert torch.equal(before, flatten(learner.state().tensors, "weights/"))


def test_a_size_that_did_not_fit_is_not_tried_again_at_once(
    learner_on: Callable[..., TorchLearner], make_trajectory: MakeTrajectory
) -> None:
    """Of fragments the passes that fit show nothing."""
    memory, batch = FakeDeviceMemory(60 * 330), batch_of(make_trajectory, 31)

    def in_fragments(micro: MicroBatch) -> int:
        return per_token(micro) * (2 if micro.tokens.size > 200 else 1)

    learner = learner_on(memory, in_fragments)
    assert max(budgets(learner, [batch] * 4)) <= 200
    assert memory.failures == 1


def test_memory_that_ran_out_twice_in_an_update_does_not_run_out_in_the_next_ones(
    learner_on: Callable[..., TorchLearner], make_trajectory: MakeTrajectory
) -> None:
    """The last pass is one short of the others: it looks as if tokens were cheap."""
    memory, batch = FakeDeviceMemory(60 * 95), batch_of(make_trajectory, 31, members=13)
    learner = learner_on(memory, per_token)
    assert budgets(learner, [batch] * 5) == [90] + 4 * [0.9 * 95 // 1]
    assert memory.failures == 2


def test_a_pass_has_memory_beside_the_gradients_that_the_first_pass_left(
    learner_on: Callable[..., TorchLearner], make_trajectory: MakeTrajectory
) -> None:
    memory, batch = FakeDeviceMemory(30_000), batch_of(make_trajectory, 31, members=24)
    learner = learner_on(memory, per_token, most=360, gradients=12_000)
    assert budgets(learner, [batch_of(make_trajectory, 31)]) == [360]  # in one pass
    assert budgets(learner, [batch] * 2)[-1] == (0.9 * 30_000 - 12_000) / 60
    assert memory.failures == 0


def test_the_budget_rises_again_where_gradients_need_more_than_passes(
    learner_on: Callable[..., TorchLearner], make_trajectory: MakeTrajectory
) -> None:
    memory, batch = FakeDeviceMemory(20_000), batch_of(make_trajectory, 31)
    learner = learner_on(memory, lambda micro: 10 * micro.tokens.size, most=180, gradients=12_000)
    assert budgets(learner, [batch]) == [180]
    with memory.holding(6_000):
        assert budgets(learner, [batch] * 6)[-1] == (0.9 * 14_000 - 12_000) / 10
    assert budgets(learner, [batch] * 2)[-1] == 180
    assert memory.failures == 0


def test_a_batch_without_loss_tokens_does_not_make_the_budget_forget(
    learner_on: Callable[..., TorchLearner], make_trajectory: MakeTrajectory
) -> None:
    learner = learner_on(FakeDeviceMemory(60 * 400), per_token)
    nothing = assemble_batch([], BASE_SETTINGS)
    learner.update(batch_of(make_trajectory, 31))
    for _ in range(6):
        assert "micro_batch_tokens" not in learner.update(nothing).values
    assert budgets(learner, [batch_of(make_trajectory, 31)]) == [0.9 * 400]


@pytest.mark.parametrize(
    ("room", "measured", "expected"),
    [
        (2000, [(100, 1000)], 200),  # 10 bytes a token
        (2000, [(100, 1000), (20, 400)], 200),  # more tokens: no credit for a fixed part
        (700, [(100, 1000), (20, 400)], 60),  # fewer: 7.5 bytes a token, 250 are fixed
        (700, [(100, 1000), (90, 999)], 40),  # a fixed part of 991 is not credible: 5 a token
        (700, [(100, 1000), (90, 100)], 70),  # nor is one below zero
        (700, [(100, 1000), (120, 900)], 40),  # the larger pass needed less
        (100, [(100, 1000)], -80),
    ],
)
def test_tokens_that_fit_by_hand(
    room: float, measured: list[tuple[int, int]], expected: int
) -> None:
    assert tokens_within(room, [MeasuredPass(*each) for each in measured]) == expected


def test_a_cpu_has_no_counters_and_shows_no_memory(
    tiny: Path, make_trajectory: MakeTrajectory
) -> None:
    assert find_memory("cpu") is None
    values = TorchLearner(tiny, BASE_SETTINGS, Hardware()).update(batch_of(make_trajectory, 20))
    assert not [name for name in values.values if name.startswith("micro_batch")]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_counters_see_a_tensor_and_its_end() -> None:
    memory = find_memory("cuda")
    assert memory is not None
    held, free = memory.held(), memory.free()
    memory.reset_peak()
    one = torch.zeros(2**22, dtype=torch.uint8, device="cuda")
    assert memory.held() - held == one.numel()
    del one
    assert memory.held() == held
    assert memory.peak() - held == 2**22
    assert memory.free() >= free - 2**24
