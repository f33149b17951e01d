"""The KL penalty, which keeps the policy near a reference policy."""

from typing import TYPE_CHECKING

from agentrl.trainer.algorithm.losses.loss_interface import LOG_BOUND

if TYPE_CHECKING:
    from torch import Tensor


def k3(current: "Tensor", reference: "Tensor") -> "Tensor":
    """Estimate KL(π ‖ π_ref) per token, unbiased and non-negative (arXiv:2402.03300, equation 4).

    current, reference: [K] log-probabilities. Returns [K]: e^d − d − 1 with d = log π_ref/π.
    """
    difference = (reference - current).clamp(-LOG_BOUND, LOG_BOUND)
    return difference.exp() - difference - 1.0
