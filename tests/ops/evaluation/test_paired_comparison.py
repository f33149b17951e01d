import math

import numpy as np
import pytest

from agentrl.core.statistics import estimate
from agentrl.ops.evaluation.paired_comparison import compare_items, sign_flip


def test_five_items_won_and_none_lost_by_hand() -> None:
    """All 32 signs: only all + and all − reach a sum of 5."""
    assert sign_flip(np.array([1.0] * 5 + [0.0] * 7), 0) == pytest.approx(2 / 32)


def test_three_won_and_one_lost_by_hand() -> None:
    """The sum is 2; of 16 signs 2 reach 4 and 8 reach 2 in size."""
    assert sign_flip(np.array([1.0, 1.0, 1.0, -1.0]), 0) == pytest.approx(10 / 16)


def test_differences_of_different_sizes_by_hand() -> None:
    """0.5 + 0.25 − 0.25 = 0.5: reached by ±(0.5, 0.25, 0.25) and by ±0.5 with the others opposed,
    two ways: 2 + 4 of 8.
    """
    assert sign_flip(np.array([0.5, 0.25, -0.25]), 0) == pytest.approx(6 / 8)


def test_policies_that_never_differ_are_alike() -> None:
    assert sign_flip(np.zeros(9), 0) == 1.0


def test_many_items_are_drawn_and_agree_with_the_normal_approximation() -> None:
    """30 won, 10 lost: z = 20 / √40 = 3.16; with the continuity of ±1, p = 2 · Φ(−3.004)."""
    differences = np.array([1.0] * 30 + [-1.0] * 10)
    assert sign_flip(differences, 1) == pytest.approx(0.0022, abs=0.0015)
    assert sign_flip(differences, 1) == sign_flip(differences, 1)


def test_only_items_that_both_have_are_compared() -> None:
    first = {"a": 0.0, "b": 1.0, "c": 0.5, "only": 1.0}
    second = {"a": 1.0, "b": 0.5, "c": 0.5, "other": 0.0}
    found = compare_items(first, second)
    assert found is not None
    assert (found.items, found.first, found.second) == (3, 0.5, pytest.approx(2 / 3))
    assert (found.gained, found.lost) == (["a"], ["b"])
    assert found.difference == estimate([1.0, -0.5, 0.0])
    assert compare_items({"a": 1.0}, {"b": 1.0}) is None


def test_one_item_has_no_interval() -> None:
    found = compare_items({"a": 0.0}, {"a": 1.0})
    assert found is not None
    assert math.isnan(found.difference.low)
    assert found.p == 1.0
