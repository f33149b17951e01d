"""What a loss takes and gives: log-probabilities and advantages in, one loss a token out."""

from typing import NamedTuple

from torch import Tensor

LOG_BOUND = 20.0  # of a log-ratio, so that its exponential stays finite


class Tokens(NamedTuple):
    """The K loss tokens of one forward pass, each field [K].

    `current`, `old`: log-probabilities, a gradient flows through `current` only. `weights`: of the
    token's loss, without a gradient.
    """

    current: Tensor
    old: Tensor
    advantages: Tensor
    weights: Tensor


class TokenLoss(NamedTuple):
    """`values`: [K] loss of each token. `clipped`: [K] bool, tokens whose ratio met a bound."""

    values: Tensor
    clipped: Tensor


def ratio(current: Tensor, old: Tensor) -> Tensor:
    """π/π_old of log-probabilities."""
    return (current - old).clamp(-LOG_BOUND, LOG_BOUND).exp()
