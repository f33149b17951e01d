from dataclasses import replace

import pytest
import torch
from torch import nn

from agentrl.core.config.sections.training import Trainer
from agentrl.core.errors import ConfigError
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.model.optimizer import learning_rate, make_optimizer, set_learning_rate

SETTINGS = resolve_settings(Trainer(learning_rate=0.5, weight_decay=0.1))


def test_the_learning_rate_warms_up_and_stays() -> None:
    chosen = replace(SETTINGS, learning_rate=1.0, warmup_updates=3)
    assert [learning_rate(chosen, n) for n in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    several = replace(chosen, warmup_updates=1, optimizer_steps=3)
    assert [learning_rate(several, n) for n in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_decay_that_ends_with_the_warm_up_is_refused() -> None:
    with pytest.raises(ConfigError, match="decay_updates = 3 is not above warmup_updates = 3"):
        resolve_settings(Trainer(warmup_updates=3, decay_updates=3))


def test_the_learning_rate_falls_to_a_tenth_and_stays() -> None:
    chosen = replace(SETTINGS, learning_rate=1.0, decay_updates=9)
    falling = [learning_rate(chosen, n) for n in range(12)]
    assert falling == pytest.approx([1.0 - 0.1 * n for n in range(10)] + [0.1, 0.1])
    warmed = replace(chosen, warmup_updates=1, optimizer_steps=3)
    assert [learning_rate(warmed, n) for n in (0, 3, 15, 27, 40)] == pytest.approx(
        [0.25, 1.0, 0.55, 0.1, 0.1]
    )


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_decay_spares_vectors(name: str) -> None:
    matrix, vector = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    optimizer = make_optimizer(
        [matrix, vector], resolve_settings(Trainer(optimizer=name, weight_decay=0.1))
    )  # type: ignore[arg-type]
    set_learning_rate(optimizer, 0.5)
    for parameter in (matrix, vector):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert matrix.tolist() == [[pytest.approx(0.95)] * 2] * 2  # 1 − 0.5 · 0.1
    assert vector.tolist() == [1.0, 1.0]


def test_sgd_takes_the_gradient_and_remembers_nothing() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = make_optimizer([weight], replace(SETTINGS, optimizer="sgd"))
    weight.grad = torch.tensor([1.0, -2.0])
    optimizer.step()
    assert weight.tolist() == [0.5, 3.0]
    assert not any(
        value is not None for state in optimizer.state.values() for value in state.values()
    )
