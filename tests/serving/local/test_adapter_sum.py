"""Sums of weights and adapters in bfloat16."""

import pytest
import torch

from agentrl.serving.local.adapter_sum import add_product, dither


@pytest.mark.parametrize("size", [3e-5, 3e-4, 3e-3])
def test_a_small_change_survives_on_average(size: float) -> None:
    torch.manual_seed(0)
    weight = (0.1 * torch.randn(512, 384)).bfloat16()
    change = size / 4 * torch.randn(512, 16) @ torch.randn(16, 384)
    served = add_product(weight, change).float() - weight.float()
    survived = float((served * change).sum() / (change * change).sum())
    assert survived == pytest.approx(1.0, abs=0.05)
    nearest = (weight.float() + change).bfloat16().float() - weight.float()
    kept = float((nearest * change).sum() / (change * change).sum())
    assert abs(survived - 1.0) < abs(kept - 1.0) or size > 1e-3


def test_values_of_bfloat16_stay_as_they_are() -> None:
    torch.manual_seed(0)
    exact = torch.cat([torch.randn(1000), torch.tensor([0.0, -0.0, 1e-30, -3.0])]).bfloat16()
    assert torch.equal(dither(exact.float()), exact)


def test_a_value_becomes_one_of_its_two_neighbours_as_often_as_it_is_near_to_each() -> None:
    low, high = 1.0, 1.0 + 2**-7
    for share in (0.1, 0.5, 0.9):
        for sign in (1.0, -1.0):
            value = sign * (low + share * (high - low))
            found = dither(torch.full((100, 100), value)).float()
            assert set(found.unique().tolist()) <= {sign * low, sign * high}
            assert float((found == sign * high).float().mean()) == pytest.approx(share, abs=0.01)


def test_other_data_types_are_added_plainly() -> None:
    weight, change = torch.randn(4, 4), 1e-6 * torch.randn(4, 4)
    assert torch.equal(add_product(weight, change), weight + change)
