import math

import pytest

from agentrl.core.statistics import ClusterSums, clustered_interval, estimate, interval


def test_wilsons_interval_of_eight_in_ten() -> None:
    """By hand, z² = 3.8415: centre (0.8 + 0.19207) / 1.38415, half 1.96 / 1.38415 · 0.15926."""
    assert interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_outcomes_of_their_own_are_wilsons_case() -> None:
    wins = [[True]] * 8 + [[False]] * 2
    assert clustered_interval(ClusterSums.of(wins)) == pytest.approx(interval(8, 10))


def test_repeats_that_always_agree_count_once() -> None:
    wins = [[True] * 7] * 8 + [[False] * 7] * 2
    assert clustered_interval(ClusterSums.of(wins)) == pytest.approx(interval(8, 10))


def test_repeats_that_half_agree_count_in_between() -> None:
    """Items at 1, ½, ½, 0 of 4: p = ½; v = (2² + 2²) / 16² = 1/32, so n is ¼ · 32 = 8."""
    wins = [[True] * 4, [True, True, False, False], [False, True, False, True], [False] * 4]
    assert clustered_interval(ClusterSums.of(wins)) == pytest.approx(interval(4, 8))


def test_clusters_of_different_sizes_by_hand() -> None:
    """4 of 4, 0 of 4, 1 of 1: p = 5/9; v = (256 + 400 + 16) / 81 / 81, n = 20 · 81 / 672."""
    wins = [[True] * 4, [False] * 4, [True]]
    effective = 20 * 81 / 672
    assert clustered_interval(ClusterSums.of(wins)) == pytest.approx(
        interval(5 / 9 * effective, effective)
    )


def test_no_more_is_known_than_there_are_outcomes() -> None:
    wins = [[True, False]] * 5
    assert clustered_interval(ClusterSums.of(wins)) == pytest.approx(interval(5, 10))


def test_where_all_were_solved_an_item_counts_once() -> None:
    assert clustered_interval(ClusterSums.of([[True] * 8] * 3)) == pytest.approx(interval(3, 3))
    assert clustered_interval(ClusterSums.of([])) == (0.0, 1.0)


@pytest.mark.parametrize("wins", [[True, False], [True, False, False] * 5])
def test_repeats_of_one_item_say_nothing_of_other_items(wins: list[bool]) -> None:
    share = sum(wins) / len(wins)
    assert clustered_interval(ClusterSums.of([wins])) == pytest.approx(interval(share, 1))


def test_the_sums_of_two_parts_are_those_of_the_whole() -> None:
    """Means 0.5 and 2 of 2 and 1: mean 1, v = ((1 − 2)² + (2 − 1)²) / 3² = 2/9."""
    parts = [ClusterSums.of([[0.25, 0.75]]), ClusterSums.of([[2.0], []])]
    assert parts[0] + parts[1] == ClusterSums(2, 3, 3.0, 5.0, 4.0, 5)
    assert (parts[0] + parts[1]).variance() == pytest.approx(2 / 9)


def test_an_estimate_of_one_run_has_no_interval() -> None:
    """Of 0.4 and 0.6: standard deviation 0.14142, half 12.706 · 0.1."""
    assert math.isnan(estimate([0.5]).low)
    assert estimate([0.4, 0.6]).high == pytest.approx(0.5 + 1.2706)
