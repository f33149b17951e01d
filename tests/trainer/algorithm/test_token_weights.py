import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.trainer.algorithm.token_weights import Aggregate, shares

MASK = np.array([0, 1, 1, 1, 0, 1], bool)
GROUPS = np.array([0, 0, 0, 0, 1, 1])
ONES = np.ones(6, np.float32)


def test_token_mean_weighs_every_loss_token_of_the_update_the_same() -> None:
    assert shares(MASK, GROUPS, ONES, "token_mean").tolist() == [0, 0.25, 0.25, 0.25, 0, 0.25]


def test_group_mean_weighs_every_group_the_same() -> None:
    found = shares(MASK, GROUPS, ONES, "group_mean")
    assert found.tolist() == pytest.approx([0, 1 / 6, 1 / 6, 1 / 6, 0, 1 / 2])


def test_a_task_of_twice_the_weight_has_twice_the_share_a_token() -> None:
    weights = np.array([1, 1, 1, 1, 2, 2], np.float32)
    found = shares(MASK, GROUPS, weights, "token_mean")
    assert found.tolist() == pytest.approx([0, 0.2, 0.2, 0.2, 0, 0.4])


def test_nothing_to_learn_from_has_no_share() -> None:
    assert not shares(np.zeros(6, bool), GROUPS, ONES, "group_mean").any()
    assert not shares(MASK, GROUPS, 0 * ONES, "token_mean").any()
    assert (
        shares(np.zeros(0, bool), np.zeros(0, int), np.zeros(0, np.float32), "group_mean").size == 0
    )


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1),
    st.sampled_from(["token_mean", "group_mean"]),
)
def test_shares_sum_to_one_where_anything_counts(
    tokens: list[tuple[bool, int]], aggregate: Aggregate
) -> None:
    mask = np.array([counts for counts, _ in tokens])
    groups = np.array([group for _, group in tokens])
    found = shares(mask, groups, np.ones(len(tokens), np.float32), aggregate)
    assert found.sum() == pytest.approx(float(mask.any()), abs=1e-5)
    assert not found[~mask].any()
