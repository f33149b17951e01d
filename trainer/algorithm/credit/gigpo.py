"""GiGPO: episodes are compared, and also turns that began in the same state."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from agentrl.trainer.algorithm.advantages import Doubles
from agentrl.trainer.algorithm.credit.credit_interface import (
    Compare,
    Credit,
    Discount,
    MemberTurns,
    compare_within,
    discounted_returns,
)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`discount`: γ, of the reward of each further turn. `step_weight`: ω, of the comparison by
    state; 0 is `outcome`.
    """

    discount: Discount = 0.95
    step_weight: Annotated[float, Meta(ge=0.0)] = 1.0


def assign(members: Sequence[MemberTurns], compare: Compare, options: Options) -> list[Doubles]:
    """A_t = A^E + ω · A^S_t (arXiv:2505.10978, equations 3 and 6 to 8).

    A^E: the reward of the episode compared with the group's. A^S_t: the discounted return from turn
    t on compared with those of all turns of the group that began in the same state; 0 for a state
    that occurs once. States are equal if what the policy read last is equal, token by token.
    """
    episodes = compare([each.reward for each in members])
    returns = [discounted_returns(each.rewards, options.discount) for each in members]
    steps = compare_within(returns, [each.states for each in members], compare)
    return [
        episode + options.step_weight * each for episode, each in zip(episodes, steps, strict=True)
    ]


CREDIT = Credit(assign, Options)
