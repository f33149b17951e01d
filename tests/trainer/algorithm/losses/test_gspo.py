import math

import pytest
import torch
from torch import Tensor

from agentrl.trainer.algorithm.losses.gspo import sequence_log_ratios, token_loss
from agentrl.trainer.algorithm.losses.loss_interface import Clip, Tokens

CLIP = Clip(low=0.1, high=0.2, dual=3.0)


def test_a_sequences_ratio_is_the_geometric_mean_over_its_loss_tokens() -> None:
    found = sequence_log_ratios(torch.tensor([0.3, 0.5, 0.1]), torch.tensor([0, 2, 0]), 3)
    assert found.tolist() == pytest.approx([0.2, 0.5, 0.2])


def test_all_tokens_of_a_sequence_share_its_ratio_and_its_bounds() -> None:
    current = torch.tensor([-0.5, -0.9, -0.7], requires_grad=True)
    log_s = torch.tensor([math.log(1.1), math.log(1.1), math.log(1.5)])
    tokens = Tokens(current, current.detach() - log_s, torch.tensor([2.0, 2.0, 1.0]), torch.ones(3))
    loss, clipped = token_loss(tokens, CLIP)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.tolist() == pytest.approx([-2.2, -2.2, -1.2])
    assert clipped.tolist() == [False, False, True]
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([-2.2, -2.2, 0.0])


def test_the_gradient_is_that_of_the_sequence_form() -> None:
    """−s(θ)·A with s the geometric mean, differentiated by autograd, averaged over the tokens."""
    old = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    start = torch.tensor([-1.1, -1.8, -0.55], dtype=torch.float64)

    def gradient(loss: Tensor, at: Tensor) -> list[float]:
        (found,) = torch.autograd.grad(loss, at)
        return [float(value) for value in found]

    whole = start.clone().requires_grad_()
    sequence = -0.7 * (whole - old).mean().exp()
    token = start.clone().requires_grad_()
    log_s = (start - old).mean().expand(3)
    tokens = Tokens(token, start - log_s, torch.full((3,), 0.7, dtype=torch.float64), torch.ones(3))
    values = token_loss(tokens, Clip(0.5, 0.5, 3.0)).values
    assert gradient(values.mean(), token) == pytest.approx(gradient(sequence, whole))


def test_a_bad_sequence_that_grew_unlikely_is_left_alone() -> None:
    current = torch.tensor([-1.0], requires_grad=True)
    old = current.detach() - math.log(0.5)
    loss, clipped = token_loss(Tokens(current, old, torch.tensor([-1.0]), torch.ones(1)), CLIP)
    assert loss.tolist() == pytest.approx([0.9])
    assert clipped.tolist() == [True]
