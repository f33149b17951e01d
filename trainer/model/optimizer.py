"""The optimizer that `trainer.optimizer` selects, and its learning rate."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from agentrl.trainer.algorithm.presets import Settings

LOWEST = 0.1  # share of the learning rate that a decay leaves


def make_optimizer(parameters: Iterable[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    """Create AdamW or SGD, without weight decay of vectors (norms and biases)."""
    every = parameter_groups(parameters, settings)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(every, lr=settings.learning_rate)
    return torch.optim.AdamW(every, lr=settings.learning_rate, fused=True)


def parameter_groups(
    parameters: Iterable[nn.Parameter], settings: Settings
) -> list[dict[str, Any]]:
    """Return parameter groups with and without weight decay."""
    listed = list(parameters)
    return [
        {"params": [p for p in listed if _is_matrix(p)], "weight_decay": settings.weight_decay},
        {"params": [p for p in listed if not _is_matrix(p)], "weight_decay": 0.0},
    ]


def _is_matrix(parameter: nn.Parameter) -> bool:
    """Also of a weight that ZeRO 3 has sharded: `ds_shape` is that of the whole."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return len(shape) > 1


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def learning_rate(settings: Settings, steps: int) -> float:
    """Return the learning rate: it rises over `warmup_updates`, then falls until `decay_updates`.

    Both are linear; without a decay it stays. steps: of the optimizer so far.
    """
    warmup = settings.warmup_updates * settings.optimizer_steps
    decay = settings.decay_updates * settings.optimizer_steps
    rise = (steps + 1) / (warmup + 1)
    gone = (steps - warmup) / max(1, decay - warmup) if decay else 0.0
    return settings.learning_rate * min(1.0, rise, 1.0 - (1.0 - LOWEST) * min(1.0, gone))


def steps_to_save(settings: Settings, steps: int) -> dict[str, int]:
    """Return the values of a snapshot from which `saved_steps` is read."""
    return {"updates": steps, "optimizer_steps": settings.optimizer_steps}


def saved_steps(settings: Settings, values: Mapping[str, Any]) -> int:
    """Return the optimizer's steps so far, as if all updates had made today's number of steps.

    So a changed `trainer.optimizer_steps` neither repeats nor skips a part of the learning rate's
    course, which is in updates.
    """
    now = settings.optimizer_steps
    return int(values["updates"]) * now // int(values.get("optimizer_steps", now))
