"""The interface of a loss: log-probabilities and advantages in, one loss per token out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

LOG_BOUND = 20.0  # of a log-ratio, so that its exponential stays finite


@dataclass(frozen=True, slots=True)
class Clip:
    """Bounds of the ratio. `dual`: bound for negative advantages, used by few losses."""

    low: float
    high: float
    dual: float


class Tokens(NamedTuple):
    """The K loss tokens of one forward pass, each field [K].

    `current`, `old`: log-probabilities; gradients flow through `current` only. `weights`: of each
    token's loss, without gradient.
    """

    current: "Tensor"
    old: "Tensor"
    advantages: "Tensor"
    weights: "Tensor"


class TokenLoss(NamedTuple):
    """The result of a loss. `values`: [K] loss per token. `clipped`: [K] whether the ratio was."""

    values: "Tensor"
    clipped: "Tensor"


@dataclass(frozen=True, slots=True)
class Loss:
    """The declaration `LOSS` in the file of a loss.

    `clip`: `clip_low` and `clip_high`, if other than the presets'. `dual_clip`: whether it uses
    that bound. `of_sequence`: whether its ratio is per trajectory.
    """

    token_loss: Callable[[Tokens, Clip], TokenLoss]
    clip: Mapping[str, float] = field(default_factory=dict)
    dual_clip: bool = False
    of_sequence: bool = False


def ratio(current: "Tensor", old: "Tensor") -> "Tensor":
    """Return π/π_old."""
    return (current - old).clamp(-LOG_BOUND, LOG_BOUND).exp()
