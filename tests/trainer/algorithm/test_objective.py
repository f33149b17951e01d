import weakref
from collections.abc import Callable, Container
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_device import DEVICE
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.core.config.sections.training import Trainer
from agentrl.core.trajectory import Trajectory
from agentrl.trainer.algorithm.metrics import TokenRecord
from agentrl.trainer.algorithm.objective import Objective
from agentrl.trainer.algorithm.presets import Settings, resolve_settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.model import gradient_checkpointing
from agentrl.trainer.model.attention import pack
from agentrl.trainer.model.files.loading import load_model
from agentrl.trainer.model.packing import empty_micro_batch, micro_batches

MakeTrajectory = Callable[..., Trajectory]
PLAIN = resolve_settings(Trainer(normalise="none"))
GSPO = resolve_settings(
    Trainer(loss="gspo", old="behaviour", normalise="none", mixed_sequences=True)
)


@pytest.fixture
def model(tiny: Path) -> Any:
    loaded = load_model(tiny, torch.device(DEVICE))
    pack(loaded)
    return loaded


@pytest.fixture
def batch(make_trajectory: MakeTrajectory) -> Batch:
    members = tuple(
        make_trajectory([(3, 7), (9, 12 + n)], 14 + n, reward=float(n % 2), seed=n)
        for n in range(6)
    )
    return assemble_batch([TrainableGroup("g", "db", members)], PLAIN)


def _loss(model: Any, chosen: Settings, batch: Batch, budget: int) -> tuple[Tensor, TokenRecord]:
    recorded = TokenRecord.empty(batch.tokens.size)
    objective = Objective(chosen, Hardware(DEVICE), lambda: nullcontext(model))
    parts = []
    for micro in micro_batches(batch, budget):
        part, found = objective.loss(model, micro)
        recorded.put(micro.sources, found)
        parts.append(part)
    assert all(part.ndim == 0 for part in parts)
    return torch.stack(parts).detach().sum(), recorded


@pytest.mark.parametrize("chosen", [PLAIN, GSPO, replace(PLAIN, kl_weight=0.5)])
def test_the_parts_of_the_loss_sum_to_what_its_tokens_weigh(
    model: Any, batch: Batch, chosen: Settings
) -> None:
    whole, recorded = _loss(model, chosen, batch, 10_000)
    parts, again = _loss(model, chosen, batch, 20)
    assert float(whole) == pytest.approx(float((recorded.loss * batch.shares).sum()), rel=1e-4)
    assert float(parts) == pytest.approx(float(whole), rel=1e-4)
    assert np.allclose(recorded.loss, again.loss, atol=1e-5)
    assert np.isfinite(recorded.kl).any() == (chosen.kl_weight > 0)


@pytest.mark.parametrize("old", ["behaviour", "proximal"])
def test_gspo_gives_all_tokens_of_a_trajectory_the_ratio_of_its_sequence(
    model: Any, batch: Batch, old: Literal["behaviour", "proximal"]
) -> None:
    wide = replace(GSPO, old=old, clip=replace(GSPO.clip, low=1.0, high=1e9))
    before = batch.behaviour
    if old == "proximal":  # as from an update's second optimizer step on
        before = (before + np.linspace(-0.5, 0.5, before.size)).astype(np.float32)
        batch = replace(batch, proximal=before)
    _, recorded = _loss(model, wide, batch, 10_000)
    start = 0
    for length in batch.lengths:
        span = slice(start, start + length)
        mask = batch.loss_mask[span]
        log_s = (recorded.logprobs[span] - before[span])[mask].mean()
        expected = -np.exp(log_s) * batch.advantages[span][mask]
        assert np.allclose(recorded.loss[span][mask], expected, rtol=1e-4)
        start += length


def test_an_empty_micro_batch_costs_nothing_and_gives_every_weight_a_gradient_of_zero(
    model: Any,
) -> None:
    objective = Objective(
        replace(GSPO, kl_weight=0.1), Hardware(DEVICE), lambda: nullcontext(model)
    )
    loss, found = objective.loss(model, empty_micro_batch())
    torch.autograd.backward(loss)
    assert loss.detach().item() == 0.0
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name
    assert {values.shape for values in found.values()} == {(0,)}


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation gave, backward passes among them."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = [each.numel() for each in tree_leaves(found) if isinstance(each, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return found


class Casts(TorchDispatchMode):
    """The most elements of layers' matrices that were there in bfloat16 at once."""

    def __init__(self, shapes: Container[torch.Size]) -> None:
        super().__init__()
        self._shapes = shapes
        self._alive: list[weakref.ref[Tensor]] = []
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and found.dtype == torch.bfloat16:
            if found.shape in self._shapes:
                self._alive.append(weakref.ref(found))
            alive = [each for each in (ref() for ref in self._alive) if each is not None]
            self.most = max(self.most, sum(each.numel() for each in alive))
        return found


def test_layers_that_are_computed_again_leave_no_copies_of_their_weights(
    tiny: Path, batch: Batch
) -> None:
    """bfloat16 in products alone: the forward pass holds one matrix's cast at a time."""
    model: Any = load_model(tiny, torch.device(DEVICE))
    pack(model)
    gradient_checkpointing.enable_checkpointing(model)
    matrices = [p for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2]
    objective = Objective(PLAIN, Hardware(DEVICE, dtype="bfloat16"), lambda: nullcontext(model))
    [micro] = micro_batches(batch, 10_000)
    with Casts({p.shape for p in matrices}) as casts:
        objective.loss(model, micro)
    assert 0 < casts.most <= 2 * max(p.numel() for p in matrices)


def test_the_head_is_cast_once_for_all_its_chunks(model: Any, batch: Batch) -> None:
    words, width = model.get_output_embeddings().weight.shape
    few = Hardware(DEVICE, dtype="bfloat16", chunk_logits=5 * words)
    objective = Objective(PLAIN, few, lambda: nullcontext(model))
    [micro] = micro_batches(batch, 10_000)
    casts: list[torch.Size] = []

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._to_copy.default and found.dtype == torch.bfloat16:
                casts.append(found.shape)
            return found

    with Counted():
        objective.loss(model, micro)
    assert micro.predicts.size > 5
    assert casts.count(torch.Size([words, width])) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_tensor_of_a_pass_is_larger_than_the_logits_that_may_exist_at_once(
    make_trajectory: MakeTrajectory, dtype: str
) -> None:
    """With the words of Qwen2.5: 60 loss tokens have twice the logits that the default allows."""
    words, allowed = 151_936, Hardware().chunk_logits
    config = Qwen3Config(
        vocab_size=words,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
    )
    model: Any = Qwen3ForCausalLM(config).to(DEVICE)  # type: ignore[no-untyped-call]
    members = tuple(make_trajectory([(2, 32)], 34, reward=float(n), seed=n) for n in range(2))
    batch = assemble_batch([TrainableGroup("g", "db", members)], PLAIN)
    assert int(batch.loss_mask.sum()) * words > 2 * allowed
    [micro] = micro_batches(batch, 1000)
    pack(model)
    objective = Objective(PLAIN, Hardware(DEVICE, dtype=dtype), lambda: nullcontext(model))
    with Largest() as largest:
        loss, _ = objective.loss(model, micro)
        torch.autograd.backward(loss)
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert allowed - words < largest.elements <= allowed
