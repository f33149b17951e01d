"""The interface of a loss: log-probabilities and advantages in, one loss per token out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

LOG_BOUND = 20.0  # of a log-ratio, so that its exponential stays finite


@dataclass(frozen=True, slots=True)
class Clip:
    """Bounds of the ratio. `dual`: the one where the advantage is negative, of few losses."""

    low: float
    high: float
    dual: float


class Tokens(NamedTuple):
    """The K loss tokens of one forward pass, each field [K].

    `current`, `old`: log-probabilities, a gradient flows through `current` only. `weights`: of the
    token's loss, without a gradient.
    """

    current: "Tensor"
    old: "Tensor"
    advantages: "Tensor"
    weights: "Tensor"


class TokenLoss(NamedTuple):
    """`values`: [K] loss of each token. `clipped`: [K] bool, tokens whose ratio met a bound."""

    values: "Tensor"
    clipped: "Tensor"


@dataclass(frozen=True, slots=True)
class Loss:
    """What the file of a loss declares as `LOSS`.

    `clip`: `clip_low` and `clip_high` where they are not those of the presets. `dual_clip`: it
    reads that bound. `of_sequence`: its ratio is one of a whole trajectory.
    """

    token_loss: Callable[[Tokens, Clip], TokenLoss]
    clip: Mapping[str, float] = field(default_factory=dict)
    dual_clip: bool = False
    of_sequence: bool = False


def ratio(current: "Tensor", old: "Tensor") -> "Tensor":
    """π/π_old of log-probabilities."""
    return (current - old).clamp(-LOG_BOUND, LOG_BOUND).exp()
