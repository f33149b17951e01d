"""The rewards of each turn are compared first, then summed up from the turn on."""

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

LAST = -1  # the key of last turns: ends are compared with ends, however late


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`discount`: of the compared reward of each further turn."""

    discount: Discount = 1.0


def assign(members: Sequence[MemberTurns], compare: Compare, options: Options) -> list[Doubles]:
    """A_t = Σ_{k ≥ t} γ^(k − t) · r̃_k, where r̃_k is r_k compared with the group's at turn k.

    The last reward, which is the outcome, is compared with the group's last ones. With two turns
    it is MT-GRPO (arXiv:2505.11821), whose λ is γ: A_1 = r̃_1 + γ · r̃_2, A_2 = r̃_2. Without
    rewards before the last turn and with γ = 1 it is `outcome`.
    """
    rewards = [each.rewards for each in members]
    keys = [[*range(each.size - 1), LAST] for each in rewards]
    compared = compare_within(rewards, keys, compare)
    return [discounted_returns(each, options.discount) for each in compared]


CREDIT = Credit(assign, Options, turn_penalty=False)  # it compares single turns
