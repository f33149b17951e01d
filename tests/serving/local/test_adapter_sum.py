"""Sums of weights and adapters in bfloat16."""

import pytest
import torch
from torch import Tensor

from agentrl.serving.local import adapter_sum
from agentrl.serving.local.adapter_sum import add_product, dither


def survival(change: Tensor, served: Tensor) -> float:
    """The share of a change that is there, by projection."""
    return float((served * change).sum() / (change * change).sum())


@pytest.mark.parametrize("size", [3e-5, 3e-4, 3e-3])
def test_a_small_change_survives_on_average(size: float) -> None:
    torch.manual_seed(0)
    weight = (0.1 * torch.randn(512, 384)).bfloat16()
    b, a = size / 4 * torch.randn(512, 16), torch.randn(16, 384)
    served = add_product(weight, b, a).float() - weight.float()
    assert survival(b @ a, served) == pytest.approx(1.0, abs=0.05)


def test_nearest_rounding_would_lose_a_small_change() -> None:
    torch.manual_seed(0)
    weight = (0.1 * torch.randn(512, 384)).bfloat16()
    change = 1e-5 * torch.randn(512, 16) @ torch.randn(16, 384)
    nearest = (weight.float() + change).bfloat16().float() - weight.float()
    assert survival(change, nearest) < 0.3


def test_values_of_bfloat16_stay_as_they_are_to_the_bit() -> None:
    torch.manual_seed(0)
    exact = torch.cat([torch.randn(1000), torch.tensor([0.0, -0.0, 1e-30, -3.0])]).bfloat16()
    assert torch.equal(dither(exact.float()).view(torch.int16), exact.view(torch.int16))


def test_a_value_becomes_one_of_its_two_neighbours_as_often_as_it_is_near_to_each() -> None:
    low, high = 1.0, 1.0 + 2**-7
    for share in (0.1, 0.5, 0.9):
        for sign in (1.0, -1.0):
            value = sign * (low + share * (high - low))
            found = dither(torch.full((100, 100), value)).float()
            assert set(found.unique().tolist()) <= {sign * low, sign * high}
            assert float((found == sign * high).float().mean()) == pytest.approx(share, abs=0.01)


def test_blocks_make_the_same_sum_also_far_into_a_large_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    weight, b, a = torch.randn(40, 30).T.bfloat16(), torch.randn(30, 2), torch.randn(2, 40)
    whole = add_product(weight, b, a)
    monkeypatch.setattr(adapter_sum, "BLOCK", 100)
    assert torch.equal(add_product(weight, b, a), whole)
    far = dither(torch.full((8,), 1.001), 2**31 + 5)
    assert set(far.tolist()) <= {1.0, 1.0 + 2**-7}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_data_types_are_rounded_to_nearest(dtype: torch.dtype) -> None:
    weight, b, a = torch.randn(4, 4).to(dtype), 1e-3 * torch.randn(4, 2), torch.randn(2, 4)
    assert torch.equal(add_product(weight, b, a), (weight.float() + b @ a).to(dtype))


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, 0x7F800000])
def test_what_is_not_finite_is_refused(bits: int) -> None:
    b = torch.full((8, 1), 0.0)
    b[5] = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    with pytest.raises(ValueError, match="not finite"):
        add_product(torch.zeros(8, 8).bfloat16(), b, torch.ones(1, 8))
