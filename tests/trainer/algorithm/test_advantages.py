import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.trainer.algorithm.advantages import group_advantages, task_normalise

REWARDS = st.lists(st.lists(st.floats(-1, 1, width=32), max_size=9), max_size=6)


def test_rewards_are_centred_in_their_own_group() -> None:
    first, second = group_advantages([[1, 0, 0, 1], [3, 0, 0]])
    assert first.tolist() == [0.5, -0.5, -0.5, 0.5]
    assert second.tolist() == [2, -1, -1]


def test_the_std_is_the_unbiased_one() -> None:
    (advantages,) = group_advantages([[1, 0, 0, 1]], "std", eps=0.0)
    assert advantages == pytest.approx(np.array([1, -1, -1, 1]) * 0.5 * np.sqrt(3))


def test_a_group_that_agrees_has_no_advantage_at_all() -> None:
    agreeing, alone, empty = group_advantages([[0.1] * 3, [7.0], []], "std")
    assert agreeing.tolist() == [0, 0, 0]
    assert alone.tolist() == [0]
    assert empty.tolist() == []


def test_the_baseline_of_a_member_may_be_the_mean_of_the_others() -> None:
    (advantages,) = group_advantages([[1, 0, 0, 0.5]], "leave_one_out")
    # 1 − 0.5/3, 0 − 1.5/3 twice, 0.5 − 1/3
    assert advantages == pytest.approx(np.array([5 / 6, -0.5, -0.5, 1 / 6]))


@given(REWARDS)
def test_advantages_of_a_group_sum_to_zero(rewards: list[list[float]]) -> None:
    for group, advantages in zip(rewards, group_advantages(rewards), strict=True):
        assert len(advantages) == len(group)
        assert abs(advantages.sum(dtype=np.float64)) < 1e-5


def test_each_task_is_normalised_over_its_own_loss_tokens() -> None:
    advantages = np.array([1, 3, 9, 10, 30, 50, 7], np.float32)
    tasks = np.array([0, 0, 0, 1, 1, 1, 1])
    mask = np.array([1.0, 1, 0, 1, 1, 1, 0])
    normalised, skipped = task_normalise(advantages, tasks, mask, 2, 0.1)
    # task 0: mean 2, σ 1; task 1: mean 30, σ √(800/3)
    expected = [-1, 1, 0, -20 / np.sqrt(800 / 3), 0, 20 / np.sqrt(800 / 3), 0]
    assert normalised == pytest.approx(np.array(expected, np.float32))
    assert skipped == frozenset()


def test_a_task_with_few_tokens_is_left_alone_and_named() -> None:
    advantages = np.array([1, 3, 5, 9], np.float32)
    tasks = np.array([0, 0, 4, 4])
    normalised, skipped = task_normalise(advantages, tasks, np.array([1.0, 1, 1, 0]), 2, 0.1)
    assert normalised.tolist() == [-1, 1, 5, 0]
    assert skipped == frozenset({4})


def test_an_entry_counts_as_often_as_its_weight_says() -> None:
    once = np.array([1, 2, 6], np.float32)
    thrice = np.array([1, 1, 1, 2, 6], np.float32)
    weighted, _ = task_normalise(once, np.zeros(3, np.int64), np.array([3.0, 1, 1]), 2, 0.1)
    repeated, _ = task_normalise(thrice, np.zeros(5, np.int64), np.ones(5), 2, 0.1)
    assert weighted == pytest.approx(repeated[2:])


def test_the_floor_bounds_what_a_task_without_spread_is_divided_by() -> None:
    advantages = np.array([0.001, -0.001], np.float32)
    normalised, _ = task_normalise(advantages, np.zeros(2, np.int64), np.ones(2), 1, 0.5)
    assert normalised == pytest.approx(np.array([0.002, -0.002]))
