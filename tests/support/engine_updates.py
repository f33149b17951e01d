"""Updates that torch's engine and DeepSpeed's are both asked for, and how far apart they come."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from agentrl.core.config.sections.training import DeepSpeed, Lora, Trainer
from agentrl.core.trajectory import Trajectory
from agentrl.trainer.algorithm.presets import Settings, resolve_settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner

MakeTrajectory = Callable[..., Trajectory]
Tensors = Mapping[str, Tensor]

BASE = Trainer(learning_rate=1e-3, weight_decay=0.1, task_norm_min_tokens=8, micro_batch_tokens=100)
BASE_SETTINGS = resolve_settings(BASE)
LORA = Lora(rank=4, targets=["q_proj", "v_proj", "down_proj"])


def deepspeed_trainer(trainer: Trainer, zero: int = 2, **changes: Any) -> Trainer:
    """Return the same trainer section with DeepSpeed as its engine."""
    section = DeepSpeed(zero=zero, timeout_s=60.0)  # type: ignore[arg-type]
    return msgspec.structs.replace(trainer, deepspeed=section, **changes)


def ragged_batch(
    make_trajectory: MakeTrajectory, seed: int = 0, chosen: Settings = BASE_SETTINGS
) -> Batch:
    """Three groups of two tasks; lengths 14 to 34, two spans each, two temperatures."""
    made = []
    for number, task in enumerate(("db", "kg", "db")):
        members = tuple(
            make_trajectory(
                [(3, 7), (9, 12 + 4 * member)],
                14 + 4 * member,
                reward=float(member % 2),
                task=task,
                temperatures=(0.7, 0.0),
                seed=100 * seed + 10 * number + member,
            )
            for member in range(6)
        )
        made.append(TrainableGroup(f"g{number}", task, members))
    return assemble_batch(made, chosen)


def update_on_torch(
    model: Path, trainer: Trainer, batches: Sequence[Batch], dtype: str = "float32"
) -> tuple[Tensors, Tensors, Mapping[str, float]]:
    """Return state before, state after, and metrics of the last update."""
    learner = TorchLearner(model, resolve_settings(trainer), Hardware(dtype=dtype))
    before = learner.state().tensors
    metrics = [learner.update(batch) for batch in batches]
    return before, learner.state().tensors, metrics[-1].values


def plain_logprobs(model: Any, batch: Batch) -> Tensor:
    """Return [N] log-probabilities, one trajectory at a time; 0 for first tokens.

    `model`: of plain transformers.
    """
    found, start = [], 0
    for length in batch.lengths.tolist():
        tokens, temperature = (
            torch.from_numpy(each[start : start + length]).to(model.device)
            for each in (batch.tokens, batch.temperature)
        )
        every = (model(tokens[None]).logits[0, :-1] / temperature[1:, None]).log_softmax(-1)
        found += [every.new_zeros(1), every.gather(1, tokens[1:, None])[:, 0]]
        start += length
    return torch.cat(found)


def flatten(tensors: Tensors, part: str) -> Tensor:
    """Concatenate all tensors whose name contains it."""
    return torch.cat([tensors[name].flatten() for name in sorted(tensors) if part in name])


def relative_distance(found: Tensor, expected: Tensor) -> float:
    """Return |a − b| / |b|."""
    assert expected.norm() > 0
    return float((found - expected).norm() / expected.norm())
