from collections.abc import Callable

import pytest

from agentrl.trainer.algorithm.credit import outcome
from agentrl.trainer.algorithm.credit.credit_interface import NoOptions
from agentrl.trainer.algorithm.credit.gigpo import CREDIT, Options

Assigned = Callable[..., list[list[float]]]
REWARDS = [[0.0, 0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
STATES = ["aba", "ab", "ac"]  # the first episode comes back to where it began


def test_turns_that_began_in_the_same_state_are_compared_wherever_they_stand(
    assigned: Assigned,
) -> None:
    # returns at γ = 0.5: 0.25 0.5 1 | 0 0 | 0.5 1
    # state a: 0.25 1 0 0.5, mean 7/16; state b: 0.5 0, mean 0.25; state c occurs once
    found = assigned(CREDIT.assign, Options(discount=0.5, step_weight=2.0), REWARDS, STATES)
    assert found[0] == pytest.approx([1 / 3 - 3 / 8, 1 / 3 + 1 / 2, 1 / 3 + 9 / 8])
    assert found[1] == pytest.approx([-2 / 3 - 7 / 8, -2 / 3 - 1 / 2])
    assert found[2] == pytest.approx([1 / 3 + 1 / 8, 1 / 3])


def test_without_weight_it_is_the_outcome(assigned: Assigned) -> None:
    found = assigned(CREDIT.assign, Options(step_weight=0.0), REWARDS, STATES)
    assert found == assigned(outcome.CREDIT.assign, NoOptions(), REWARDS, STATES)
