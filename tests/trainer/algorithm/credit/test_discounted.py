from collections.abc import Callable

import pytest

from agentrl.trainer.algorithm.credit.discounted import CREDIT, Options


def test_a_turn_is_compared_by_what_follows_it_with_the_same_turn_of_the_others(
    assigned: Callable[..., list[list[float]]],
) -> None:
    rewards = [[0.0, 0.0, 1.0], [0.5, 1.0], [0.0, 0.0, 0.0]]
    # returns at γ = 0.5: 0.25 0.5 1 | 1 1 | 0 0 0; means by turn: 5/12, 0.5, 0.5
    found = assigned(CREDIT.assign, Options(discount=0.5), rewards)
    assert found[0] == pytest.approx([0.25 - 5 / 12, 0.0, 0.5])
    assert found[1] == pytest.approx([1 - 5 / 12, 0.5])
    assert found[2] == pytest.approx([-5 / 12, -0.5, -0.5])


def test_a_turn_that_only_one_member_reached_teaches_nothing(
    assigned: Callable[..., list[list[float]]],
) -> None:
    found = assigned(CREDIT.assign, Options(discount=1.0), [[0.0, 1.0], [0.0]])
    assert found == [[0.5, 0.0], [-0.5]]
