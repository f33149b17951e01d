"""The KL penalty, which keeps the policy near a reference policy."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def k3(current: "Tensor", reference: "Tensor") -> "Tensor":
    """Estimate KL(π ‖ π_ref) per token, unbiased and non-negative (arXiv:2402.03300, equation 4).

    current, reference: [K] log-probabilities. Returns [K]: e^d − d − 1 with d = log π_ref/π.
    """
    difference = (reference - current).clamp(-20.0, 20.0)
    return difference.exp() - difference - 1.0
