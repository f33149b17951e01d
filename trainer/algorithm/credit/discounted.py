"""A turn is credited with the rewards from it on; later rewards count less."""

from collections.abc import Sequence

import msgspec

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
    """`discount`: γ, of the reward of each further turn."""

    discount: Discount = 0.95


def assign(members: Sequence[MemberTurns], compare: Compare, options: Options) -> list[Doubles]:
    """A_t = G_t = Σ_{k ≥ t} γ^(k − t) · r_k, compared with the group's G at the same turn.

    REINFORCE's return (Sutton and Barto, 2nd edition, equation 3.8) with a baseline for each turn:
    members that have ended before turn t are not in it.
    """
    returns = [discounted_returns(each.rewards, options.discount) for each in members]
    return compare_within(returns, [range(each.size) for each in returns], compare)


CREDIT = Credit(assign, Options)
