"""The weight of each token in the loss of an update. The weights of an update sum to one."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithm.advantages import Floats

Aggregate = Literal["token_mean", "group_mean"]


def shares(
    loss_mask: NDArray[np.bool_],
    group_ids: NDArray[np.int64],
    weights: Floats,
    aggregate: Aggregate,
) -> Floats:
    """Compute the weight of each token, [N], zero outside the mask.

    loss_mask, group_ids, weights: [N], one entry per token; `weights`: of the tokens' tasks.
    `token_mean`: every loss token of the update has the same weight (arXiv:2503.14476, section
    3.3). `group_mean`: every group has the same weight, and every loss token in it. All zeros
    without tokens.
    """
    raw = np.where(loss_mask, weights, 0.0).astype(np.float64)
    if aggregate == "group_mean" and raw.size:
        tokens = np.bincount(group_ids, weights=loss_mask)
        raw /= np.maximum(tokens, 1.0)[group_ids]
    total = raw.sum()
    return (raw / total if total > 0 else raw).astype(np.float32)
