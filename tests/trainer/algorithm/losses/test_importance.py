import math

import pytest
import torch
from torch import Tensor

from agentrl.trainer.algorithm.losses.importance import weights
from agentrl.trainer.algorithm.presets import Importance


def logs(*values: float) -> Tensor:
    return torch.tensor([math.log(value) for value in values])


OLD, BEHAVIOUR = logs(0.8, 0.3, 0.1, 0.9), logs(0.1, 0.2, 0.4, 0.9)  # weights 8, 1.5, 0.25, 1


def test_without_weights_every_token_counts_once() -> None:
    assert weights(OLD, BEHAVIOUR, Importance("none")).tolist() == [1.0] * 4


def test_truncated_weights_are_cut_from_above_only() -> None:
    found = weights(OLD, BEHAVIOUR, Importance("truncated", most=2.0))
    assert found.tolist() == pytest.approx([2.0, 1.5, 0.25, 1.0])


def test_icepop_masks_what_lies_outside_its_bounds() -> None:
    found = weights(OLD, BEHAVIOUR, Importance("icepop", least=0.5, most=5.0))
    assert found.tolist() == pytest.approx([0.0, 1.5, 0.0, 1.0])


def test_no_gradient_flows_through_a_weight() -> None:
    old = OLD.clone().requires_grad_()
    assert not weights(old, BEHAVIOUR, Importance("truncated", most=2.0)).requires_grad


def test_log_probabilities_far_apart_give_finite_weights() -> None:
    far = weights(torch.tensor([0.0]), torch.tensor([-1e4]), Importance("icepop", 0.5, 1e30))
    assert far.tolist() == pytest.approx([math.exp(20)])
