"""On-policy distillation: draws each sampled token towards a teacher's distribution."""

from typing import TYPE_CHECKING

from agentrl.trainer.algorithm.losses.loss_interface import LOG_BOUND

if TYPE_CHECKING:
    from torch import Tensor


def teacher_advantages(current: "Tensor", teacher: "Tensor", weights: "Tensor") -> "Tensor":
    """Return [K]: weight · (log π_teacher − log π) of each token, without gradient.

    current, teacher: [K] log-probabilities of the sampled tokens. weights: [K], 0 where no teacher
    scored the token. As advantages they descend the estimate log π − log π_teacher of the reverse
    KL divergence KL(π ‖ π_teacher) at each token (arXiv:2306.13649, section 3, with λ = 1;
    arXiv:2306.08543, equation 2, without later tokens). A difference is at most LOG_BOUND.
    """
    difference = (teacher - current.detach()).clamp(-LOG_BOUND, LOG_BOUND)
    return difference.mul(weights).masked_fill(weights == 0.0, 0.0)
