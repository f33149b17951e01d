from collections.abc import Callable

import pytest

from agentrl.trainer.algorithm.credit import outcome
from agentrl.trainer.algorithm.credit.credit_interface import NoOptions
from agentrl.trainer.algorithm.credit.turn import CREDIT, Options

Assigned = Callable[..., list[list[float]]]


def test_rewards_are_compared_turn_by_turn_and_outcomes_with_outcomes(assigned: Assigned) -> None:
    rewards = [[0.2, 0.0, 1.0], [0.0, 0.4, 0.0], [0.1, 1.0]]
    # turn 0: 0.1 -0.1 0; turn 1 of those that went on: -0.2 0.2; ends 1 0 1: 1/3 -2/3 1/3
    found = assigned(CREDIT.assign, Options(), rewards)
    assert found[0] == pytest.approx([0.1 - 0.2 + 1 / 3, -0.2 + 1 / 3, 1 / 3])
    assert found[1] == pytest.approx([-0.1 + 0.2 - 2 / 3, 0.2 - 2 / 3, -2 / 3])
    assert found[2] == pytest.approx([0.0 + 1 / 3, 1 / 3])


def test_later_turns_may_count_less(assigned: Assigned) -> None:
    found = assigned(CREDIT.assign, Options(discount=0.5), [[1.0, 1.0], [0.0, 0.0]])
    assert found == [[0.75, 0.5], [-0.75, -0.5]]


def test_each_comparison_divides_by_its_own_deviation(assigned: Assigned) -> None:
    rewards = [[0.1, 3.0], [0.0, 0.0]]  # r − mean over std of two numbers: ±1/√2, whatever they are
    found = assigned(CREDIT.assign, Options(), rewards, kind="std")
    assert found[0] == pytest.approx([2**0.5, 0.5**0.5], abs=1e-4)
    assert found[1] == pytest.approx([-(2**0.5), -(0.5**0.5)], abs=1e-4)


def test_without_rewards_before_the_end_it_is_the_outcome(assigned: Assigned) -> None:
    rewards = [[0.0, 0.0, 1.0], [0.0], [0.0, 0.5]]
    assert assigned(CREDIT.assign, Options(), rewards) == assigned(
        outcome.CREDIT.assign, NoOptions(), rewards
    )
