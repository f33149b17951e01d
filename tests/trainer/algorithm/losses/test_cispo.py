import math

import pytest
import torch
from torch import Tensor

from agentrl.trainer.algorithm.losses.cispo import token_loss
from agentrl.trainer.algorithm.losses.loss_interface import Clip, Tokens

CLIP = Clip(low=1.0, high=1.0, dual=3.0)  # ratios in [0, 2]


def logs(*values: float) -> Tensor:
    return torch.tensor([math.log(value) for value in values])


def test_the_gradient_is_that_of_reinforce_weighed_by_the_bounded_ratio() -> None:
    current = logs(0.6, 0.8, 0.1).requires_grad_()
    tokens = Tokens(
        current, logs(0.4, 0.1, 0.5), torch.tensor([2.0, -1.0, 1.0]), torch.tensor([1.0, 1.0, 0.5])
    )
    loss, clipped = token_loss(tokens, CLIP)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    # −w · min(ratio, 2) · A with ratios 1.5, 8 and 0.2
    assert current.grad.tolist() == pytest.approx([-3.0, 2.0, -0.1])
    assert clipped.tolist() == [False, True, False]
    assert loss.tolist() == pytest.approx(
        [-3.0 * math.log(0.6), 2.0 * math.log(0.8), -0.1 * math.log(0.1)]
    )


def test_a_lower_bound_lifts_the_weight_of_what_grew_unlikely() -> None:
    tokens = Tokens(logs(0.1), logs(0.5), torch.tensor([1.0]), torch.tensor([1.0]))
    loss, clipped = token_loss(tokens, Clip(low=0.5, high=1.0, dual=3.0))
    assert loss.tolist() == pytest.approx([-0.5 * math.log(0.1)])
    assert clipped.tolist() == [True]
