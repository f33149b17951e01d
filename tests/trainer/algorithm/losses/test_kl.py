import math

import pytest
import torch

from agentrl.trainer.algorithm.losses.kl import k3


def test_k3_has_the_value_worked_out_by_hand() -> None:
    current = torch.tensor([math.log(0.5), math.log(0.25)])
    reference = torch.tensor([math.log(0.25), math.log(0.25)])
    # d = log(1/2): 0.5 + log 2 − 1
    assert k3(current, reference).tolist() == pytest.approx([math.log(2) - 0.5, 0.0], abs=1e-7)


def test_k3_estimates_the_kl_without_bias() -> None:
    policy = torch.tensor([0.7, 0.2, 0.1])
    other = torch.tensor([0.3, 0.3, 0.4])
    expected = (policy * (policy / other).log()).sum()
    assert (policy * k3(policy.log(), other.log())).sum() == pytest.approx(expected.item())
