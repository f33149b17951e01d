"""The loop of benchmarks/helpers/bare_loop.py that the trainer is compared with."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_updates import ragged_batch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch_device import DEVICE

from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.trajectory import Trajectory
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner

ROOT = Path(__file__).parents[3]


@contextmanager
def stepped_weights() -> Iterator[list[int]]:
    """How many weights each step of an optimizer changes, for as long as this is open."""
    counts: list[int] = []

    def count(optimizer: Optimizer, *_: Any) -> None:
        groups = optimizer.param_groups
        counts.append(sum(each.numel() for group in groups for each in group["params"]))

    hook = register_optimizer_step_post_hook(count)
    try:
        yield counts
    finally:
        hook.remove()


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("every_token", [True, False])
def test_the_bare_loop_trains_the_weights_that_the_trainer_trains(
    tiny: Path,
    make_trajectory: Callable[..., Trajectory],
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    every_token: bool,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    bare_update = importlib.import_module("helpers.bare_loop").bare_update
    settings = resolve_settings(Trainer(lora=Lora(rank=rank), task_norm_min_tokens=8))
    batch = ragged_batch(make_trajectory, chosen=settings)
    with stepped_weights() as counts:
        bare_update(tiny, batch, settings, Hardware(DEVICE), every_token=every_token)()
        TorchLearner(tiny, settings, Hardware(DEVICE)).update(batch)
    bare, trainer = counts
    assert bare == trainer > 0
