from collections.abc import Callable

from agentrl.trainer.algorithm.credit.credit_interface import NoOptions
from agentrl.trainer.algorithm.credit.outcome import CREDIT


def test_every_turn_has_the_advantage_of_its_episode(assigned: Callable[..., object]) -> None:
    rewards = [[0.25, 0.75], [0.0], [0.5, 0.0, 0.0]]  # 1, 0 and 0.5: mean 0.5
    found = assigned(CREDIT.assign, NoOptions(), rewards)
    assert found == [[0.5, 0.5], [-0.5], [0.0, 0.0, 0.0]]
