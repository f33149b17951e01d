import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentrl.trainer.algorithm.losses.importance import weights
from agentrl.trainer.algorithm.losses.loss_interface import Clip, TokenLoss, Tokens
from agentrl.trainer.algorithm.losses.ppo_clip import token_loss
from agentrl.trainer.algorithm.presets import Importance

CLIP = Clip(low=0.2, high=0.28, dual=3.0)
TRUNCATED = Importance("truncated", most=2.0)
LOGPROB = st.floats(-8, 0, width=32)
TOKENS = st.lists(st.tuples(LOGPROB, LOGPROB, LOGPROB, st.floats(-3, 3, width=32)), min_size=1)


def logs(*values: float) -> Tensor:
    return torch.tensor([math.log(value) for value in values])


def plain(current: Tensor, old: Tensor, advantages: Tensor) -> TokenLoss:
    return token_loss(Tokens(current, old, advantages, torch.ones_like(old)), CLIP)


def decoupled(current: Tensor, old: Tensor, behaviour: Tensor, advantages: Tensor) -> TokenLoss:
    weighed = weights(old, behaviour, TRUNCATED)
    return token_loss(Tokens(current, old, advantages, weighed), CLIP)


def test_ratios_are_clipped_on_the_side_that_gains() -> None:
    half = logs(*[0.5] * 6)
    current = logs(0.75, 0.55, 0.25, 0.75, 0.45, 0.25)
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    loss, clipped = plain(current, half, advantages)
    assert loss.tolist() == pytest.approx([-1.28, -1.1, -0.5, 1.5, 0.9, 0.8])
    assert clipped.tolist() == [True, False, False, False, False, True]


def test_dual_clip_bounds_the_loss_of_a_bad_token_that_grew_likely() -> None:
    loss, clipped = plain(logs(0.8), logs(0.1), torch.tensor([-2.0]))  # ratio 8, bounded at 3
    assert loss.tolist() == pytest.approx([6.0])
    assert clipped.tolist() == [True]


def test_weights_of_the_decoupled_loss_are_truncated() -> None:
    current = logs(0.5, 0.4)
    behaviour = logs(0.1, 0.8)  # π_prox/μ: 5 is cut to 2, and 0.5
    loss, clipped = decoupled(current, current, behaviour, torch.tensor([1.0, 1.0]))
    assert loss.tolist() == pytest.approx([-2.0, -0.5])
    assert not clipped.any()


def test_the_gradient_is_the_weighted_policy_gradient_at_the_proximal_policy() -> None:
    current = logs(0.5, 0.4).requires_grad_()
    advantages = torch.tensor([1.0, -3.0])
    loss, _ = decoupled(current, current.detach(), logs(0.1, 0.8), advantages)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([-2.0, 1.5])


def test_clipped_tokens_have_no_gradient() -> None:
    current = logs(0.75, 0.25, 0.8).requires_grad_()
    old = logs(0.5, 0.5, 0.1)
    loss, clipped = plain(current, old, torch.tensor([1.0, -1.0, -1.0]))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    assert clipped.all()
    assert current.grad.tolist() == [0.0, 0.0, 0.0]


@given(TOKENS)
def test_the_loss_is_that_of_an_independent_formula(
    tokens: list[tuple[float, float, float, float]],
) -> None:
    current, old, behaviour, advantages = np.array(tokens, np.float32).T.astype(np.float64)
    ratio = np.exp(current - old)
    surrogate = np.where(
        advantages >= 0,
        np.minimum(ratio, 1.28) * advantages,
        np.minimum(np.maximum(ratio, 0.8), 3.0) * advantages,
    )
    expected = -np.minimum(np.exp(old - behaviour), 2.0) * surrogate
    loss, _ = decoupled(
        *(torch.from_numpy(values) for values in (current, old, behaviour, advantages))
    )
    assert loss.numpy() == pytest.approx(expected, rel=1e-6, abs=1e-9)
