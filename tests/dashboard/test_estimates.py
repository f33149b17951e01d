import pytest

from agentrl.core.config.sections.run import Run
from agentrl.core.statistics import ClusterSums, estimate, interval
from agentrl.dashboard.curve_charts import reward_chart
from agentrl.dashboard.estimates import (
    duration,
    left_s,
    pass_at,
    reward,
    stop_rules,
    success,
)
from agentrl.db.queries.curves import Point, Span

SPAN = Span(3, 1.0, 10, 1.0)
WINS = [[1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]  # of five items
REWARDS = [[0.5, 0.5], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
POINT = Point(SPAN, "kg", ClusterSums.of(WINS), ClusterSums.of(REWARDS), 0.25, 2.0, 9.0)
ALIKE = [[1.0] * 4, [1.0] * 4, [0.0] * 4, [0.0] * 4]  # the episodes of an item have one outcome


def test_success_has_wilsons_interval() -> None:
    found = success(POINT)
    assert found.mean == 0.5
    assert found.low == pytest.approx(0.2366, abs=1e-4)
    assert found.high == pytest.approx(0.7634, abs=1e-4)


def test_items_whose_episodes_agree_count_once() -> None:
    sums = ClusterSums.of(ALIKE)
    alike = Point(SPAN, "kg", sums, sums, 0.25, 2.0, 9.0)
    found, mean = success(alike), reward(alike)
    assert (found.low, found.high) == pytest.approx(interval(2, 4))
    students = estimate([1.0, 1.0, 0.0, 0.0])  # of the items' means
    assert (mean.low, mean.high) == pytest.approx((students.low, students.high))


def test_the_mean_reward_is_as_sure_as_its_standard_error() -> None:
    found = reward(POINT)  # five items, t = 2.776: 2.776 · √(0.25 / 10 · 5 / 4) = 0.4907
    assert (found.low, found.high) == pytest.approx((0.4 - 0.4907, 0.4 + 0.4907), abs=1e-4)


def test_the_repeats_of_one_item_give_its_reward_no_interval() -> None:
    sums = ClusterSums.of([[1.0, 0.0]])
    alone = Point(SPAN, "kg", sums, sums, 0.25, 2.0, 9.0)
    assert reward(alone).interval_text(".3f") == "–"
    (row,) = reward_chart([alone], {"kg": "red"})["data"]["values"]
    assert (row["reward"], row["low"], row["high"]) == (0.5, None, None)


def test_pass_at_k_by_hand() -> None:
    groups = {(4, 1): 1, (4, 4): 1}
    one, two = pass_at(1, groups), pass_at(2, groups)
    assert one is not None
    assert two is not None
    assert one.mean == pytest.approx((1 / 4 + 1) / 2)
    assert two.mean == pytest.approx((1 / 2 + 1) / 2)  # 1 − C(3, 2)/C(4, 2) = 1/2
    assert (two.low, two.high) == (0.0, 1.0)
    many = pass_at(2, {(4, 1): 2, (4, 4): 2})
    assert many is not None
    assert many.low == pytest.approx(estimate([0.5, 0.5, 1.0, 1.0]).low)


def test_one_group_says_little_of_other_items() -> None:
    found = pass_at(1, {(4, 2): 1})
    assert found is not None
    assert (found.mean, found.low, found.high) == (0.5, 0.0, 1.0)


def test_groups_smaller_than_k_say_nothing_of_it() -> None:
    assert pass_at(8, {(4, 1): 3}) is None
    found = pass_at(8, {(4, 0): 3, (8, 8): 1})
    assert found is not None
    assert found.mean == 1.0


def test_stop_rules_tell_what_is_left_and_the_first_decides() -> None:
    config = Run(stop_updates=100, stop_hours=2.0, stop_success=0.9)
    rules = stop_rules(config, 25, 3600.0, 10.0, 0.45)
    assert [(rule.name, rule.share) for rule in rules] == [
        ("updates", 0.25),
        ("hours", 0.5),
        ("success of every task", 0.5),
    ]
    assert [rule.left_s for rule in rules] == [750.0, 3600.0, None]
    assert left_s(rules) == 750.0


def test_a_run_without_rules_or_pace_knows_no_end() -> None:
    assert stop_rules(Run(), 5, 10.0, 1.0, 0.5) == []
    (rule,) = stop_rules(Run(stop_updates=10), 1, 10.0, None, None)
    assert left_s([rule]) is None


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(None, "–"), (0.4, "0 s"), (59.0, "59 s"), (90.0, "2 min"), (7260.0, "2 h 1 min")],
)
def test_durations_read_well(seconds: float | None, told: str) -> None:
    assert duration(seconds) == told
