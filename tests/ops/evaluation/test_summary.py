from dataclasses import replace

import pytest

from agentrl.core.statistics import interval
from agentrl.core.types import Status
from agentrl.ops.evaluation.command import describe_result
from agentrl.ops.evaluation.evaluate import EpisodeScore, Plan, PlanResult
from agentrl.ops.evaluation.summary import summarise
from agentrl.ops.evaluation.target import EXPERT


def summary(wins: dict[str, list[int]]) -> PlanResult:
    """Of episodes by item, each won (1) or lost (0)."""
    repeats = max(map(len, wins.values()))
    found = [
        EpisodeScore(item, repeat, Status.COMPLETED, won, won, 1, 9, 5, 4, 1.0)
        for item, each in wins.items()
        for repeat, won in enumerate(each)
    ]
    return summarise(Plan("kg", "test", 1.0, len(wins), repeats), found)


def test_an_item_that_was_repeated_more_often_counts_as_one_item() -> None:
    """p = 1/3 of 3 items; the variance of their mean is (4/9 + 1/9 + 1/9) / 9, so 3 effective."""
    found = summary({"a": [1, 1, 1, 1], "b": [0], "c": [0]})
    assert (found.success, found.reward, found.score) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert found.success == pytest.approx(found.pass_at[1])
    assert (found.low, found.high) == pytest.approx(interval(1, 3))
    assert found.episodes == 6


def test_the_interval_is_never_narrower_than_of_independent_episodes() -> None:
    """Their mean over items has the variance p(1 − p) / m² · (1/2 + 1/4): 16/3 effective."""
    found = summary({"a": [1, 0], "b": [1, 0, 1, 0]})
    assert (found.low, found.high) == pytest.approx(interval(8 / 3, 16 / 3))


def test_of_equal_repeats_success_is_the_share_of_episodes() -> None:
    found = summary({"a": [1, 1], "b": [1, 0], "c": [0, 0], "d": [0, 0]})
    assert found.success == 3 / 8
    # variance of the mean: ((1 − 3/8)² + (1/2 − 3/8)² + 2 (3/8)²) / 16
    effective = (3 / 8 * 5 / 8) / ((25 + 1 + 18) / 64 / 16)
    assert (found.low, found.high) == pytest.approx(interval(3 / 8 * effective, effective))


def test_json_gives_the_number_of_items_also_of_a_whole_split() -> None:
    played = EpisodeScore("a", 0, Status.COMPLETED, 1.0, 1.0, 1, 9, 5, 4, 1.0)
    again = replace(played, repeat=1)
    found = summarise(Plan("kg", "test", 1.0, 10**9, 2), [played, again, None, None])
    assert describe_result(EXPERT, found)["items"] == 2


def test_of_no_episode_nothing_is_known() -> None:
    found = summarise(Plan("kg", "test", 1.0, 3), [None])
    assert (found.success, found.low, found.high, found.failed) == (0.0, 0.0, 1.0, 1)
