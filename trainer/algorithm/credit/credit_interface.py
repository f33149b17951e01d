"""What a credit sees of a group's turns, what it declares, and the sums that several use."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from agentrl.trainer.algorithm.advantages import Doubles

Discount = Annotated[float, Meta(gt=0.0, le=1.0)]


@dataclass(frozen=True, slots=True, eq=False)
class MemberTurns:
    """The K ≥ 1 turns of one member of a group.

    `reward`: of the episode, as trained. `rewards` [K]: of each turn; they sum to `reward`.
    `states`: of each turn, the tokens that the policy read since its last turn.
    """

    reward: float
    rewards: Doubles
    states: tuple[bytes, ...]


Compare = Callable[[Sequence[float]], Doubles]
"""Compares values with each other, as `trainer.advantage` says. Zeros if all are equal."""

Assign = Callable[[Sequence[MemberTurns], Compare, Any], list[Doubles]]
"""Computes the advantages of the turns of a group, [K] for each member."""


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a credit that has none."""


@dataclass(frozen=True, slots=True)
class Credit:
    """A way to credit turns. `options`: its keys in `trainer.credit_options`.

    `turn_penalty`: whether a cost that is equal for all turns changes its advantages.
    """

    assign: Assign
    options: type[msgspec.Struct] = NoOptions
    turn_penalty: bool = True


def discounted_returns(rewards: Doubles, discount: float) -> Doubles:
    """Return G_t = Σ_{k ≥ t} discount^(k − t) · r_k for each turn. rewards: [K]."""
    returns = np.zeros_like(rewards)
    following = 0.0
    for turn in reversed(range(rewards.size)):
        following = rewards[turn] + discount * following
        returns[turn] = following
    return returns


def compare_within(
    values: Sequence[Doubles], keys: Sequence[Iterable[Hashable]], compare: Compare
) -> list[Doubles]:
    """Compare each value with all values of the group that have its key.

    values: [K] of each member. keys: of the same shape. Returns the same shape as `values`.
    """
    places: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for member, named in enumerate(keys):
        for turn, key in enumerate(named):
            places[key].append((member, turn))
    advantages = [np.zeros_like(each) for each in values]
    for alike in places.values():
        compared = compare([values[member][turn] for member, turn in alike])
        for (member, turn), advantage in zip(alike, compared, strict=True):
            advantages[member][turn] = advantage
    return advantages
