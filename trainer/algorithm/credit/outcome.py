"""Every turn has the advantage of its episode."""

from collections.abc import Sequence

import numpy as np

from agentrl.trainer.algorithm.advantages import Doubles
from agentrl.trainer.algorithm.credit.credit_interface import (
    Compare,
    Credit,
    MemberTurns,
    NoOptions,
)


def assign(members: Sequence[MemberTurns], compare: Compare, _options: NoOptions) -> list[Doubles]:
    """A_t = the reward of the episode compared with the group's (GRPO, arXiv:2402.03300)."""
    advantages = compare([each.reward for each in members])
    return [
        np.full(each.rewards.size, advantage)
        for each, advantage in zip(members, advantages, strict=True)
    ]


CREDIT = Credit(assign)
