"""Groups of turns, written down as rewards and states."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from agentrl.trainer.algorithm.advantages import Doubles, group_advantages
from agentrl.trainer.algorithm.credit.credit_interface import Assign, MemberTurns

Assigned = Callable[..., list[list[float]]]


@pytest.fixture
def assigned() -> Assigned:
    """Credit a group: rewards of each member's turns, and the states they began in."""

    def assigned(
        assign: Assign,
        options: object,
        rewards: Sequence[Sequence[float]],
        states: Sequence[str] = (),
        kind: str = "centred",
    ) -> list[list[float]]:
        named = states or ["s" * len(each) for each in rewards]
        members = [
            MemberTurns(sum(own), np.array(own, float), tuple(s.encode() for s in word))
            for own, word in zip(rewards, named, strict=True)
        ]

        def compare(values: Sequence[float]) -> Doubles:
            return group_advantages([values], kind)[0].astype(np.float64)

        return [each.tolist() for each in assign(members, compare, options)]

    return assigned
