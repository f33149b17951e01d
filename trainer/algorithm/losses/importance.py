"""Token weights π_prox/μ, which correct for tokens that an older policy sampled."""

from typing import TYPE_CHECKING

from agentrl.trainer.algorithm.losses.loss_interface import ratio
from agentrl.trainer.algorithm.presets import Importance

if TYPE_CHECKING:
    from torch import Tensor


def weights(old: "Tensor", behaviour: "Tensor", importance: Importance) -> "Tensor":
    """Return [K] token weights without gradient. old, behaviour: [K] log-probabilities.

    `none`: one. `truncated`: min(π_prox/μ, most) (arXiv:2110.00641, and truncated importance
    sampling). `icepop`: π_prox/μ if it is in [least, most], else 0, which masks the token
    (arXiv:2510.18855, section 2).
    """
    import torch

    if importance.kind == "none":
        return torch.ones_like(behaviour)
    raw = ratio(old, behaviour).detach()
    if importance.kind == "truncated":
        return raw.clamp(max=importance.most)
    inside = (raw >= importance.least) & (raw <= importance.most)
    return torch.where(inside, raw, torch.zeros_like(raw))
