"""Drawing tokens, with numbers worked out by hand."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_device import DEVICE

from agentrl.serving.local.sampling import draw_tokens

THREE = torch.tensor(
    [[math.log(1.0), math.log(2.0), math.log(5.0)]], device=DEVICE
)  # p = 1/8, 2/8, 5/8


def one(logits: torch.Tensor, temperature: float, uniform: float) -> tuple[int, float]:
    drawn = torch.tensor([uniform], dtype=torch.float64, device=DEVICE)
    token, logprob = draw_tokens(logits, torch.tensor([temperature], device=DEVICE), drawn)
    return int(token[0]), float(logprob[0])


def test_a_uniform_number_picks_the_token_whose_share_it_falls_in() -> None:
    drawn = [one(THREE, 1.0, uniform)[0] for uniform in (0.0, 0.124, 0.126, 0.374, 0.376, 0.999)]
    assert drawn == [0, 0, 1, 1, 2, 2]
    assert math.isclose(one(THREE, 1.0, 0.2)[1], math.log(2 / 8), rel_tol=1e-6)


def test_temperature_reshapes_the_distribution_that_is_reported() -> None:
    # at T = 1/2 the weights are squared: 1, 4, 25 of 30
    assert math.isclose(one(THREE, 0.5, 0.1)[1], math.log(4 / 30), rel_tol=1e-5)
    assert one(THREE, 0.5, 0.16)[0] == 1
    assert one(THREE, 0.5, 0.17)[0] == 2


def test_temperature_zero_is_greedy_with_the_log_probability_at_one() -> None:
    token, logprob = one(THREE, 0.0, 0.0)
    assert token == 2
    assert math.isclose(logprob, math.log(5 / 8), rel_tol=1e-6)


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 4))
def test_an_impossible_token_is_never_drawn(uniform: float, possible: int) -> None:
    logits = torch.full((1, 5), -math.inf, device=DEVICE)
    logits[0, possible] = 0.0
    assert one(logits, 1.0, uniform) == (possible, 0.0)
