from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Dispatch
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ConfigError
from agentrl.db.transitions.item_streams import LatestSuccess
from agentrl.workers.dispatch.curriculum import (
    RestRule,
    carry_debts,
    check,
    debts_after,
    learning_progress,
    next_task,
    shares,
    turn_limit,
)

EXACT = 1e-9
tasks = st.sampled_from("abcde")
weight_maps = st.dictionaries(tasks, st.floats(0.01, 100.0), min_size=1, max_size=5)


def test_the_horizon_is_that_of_the_last_version_reached() -> None:
    schedule = [(0, 5), (20, 8), (50, 10)]
    found = [turn_limit(schedule, version) for version in (0, 19, 20, 49, 50, 999)]
    assert found == [5, 5, 8, 8, 10, 10]
    assert turn_limit([], 3) is None
    assert turn_limit([(4, 2)], 3) is None


def test_an_item_rests_in_the_passes_that_follow() -> None:
    rest, hard, fit = RestRule(0.1, 0.9, 2), LatestSuccess(7, 0.0), LatestSuccess(7, 0.5)
    assert [rest.is_resting(hard, 5, position) for position in (9, 10, 14, 15, 19, 20)] == [
        *(False, True, True, True, True, False)
    ]
    assert not any(rest.is_resting(fit, 5, position) for position in range(7, 30))
    assert not RestRule(0.0, 0.9, 1).is_resting(hard, 5, 10)
    assert RestRule(0.1, 0.9, 1).is_resting(LatestSuccess(7, 1.0), 5, 10)
    assert not RestRule(0.1, 0.9, 1).is_resting(LatestSuccess(7, 0.9), 5, 10)


def test_progress_is_the_change_between_two_windows() -> None:
    assert learning_progress([1.0, 0.5, 0.25, 0.25, 9.0], 2) == 0.5
    assert learning_progress([0.25, 0.25, 1.0, 0.5], 2) == 0.5
    assert learning_progress([0.3] * 8, 4) == 0.0
    assert learning_progress([1.0, 0.5, 0.25], 2) is None


def test_shares_follow_progress_above_the_floor() -> None:
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    found = shares(weights, {"a": 0.3, "b": 0.0, "c": 0.05}, 0.1)
    # f = 1/4, 1/4, 1/2; f·p = 0.075, 0, 0.025; q = 3/4, 0, 1/4; 0.1 + 0.7 q
    assert found == pytest.approx({"a": 0.625, "b": 0.1, "c": 0.275})
    assert shares(weights, {}, 0.0) == {"a": 0.25, "b": 0.25, "c": 0.5}
    still = shares(weights, dict.fromkeys(weights, 0.0), 0.1)
    assert still == pytest.approx({"a": 0.275, "b": 0.275, "c": 0.45})


def test_a_task_whose_progress_is_unknown_keeps_its_share() -> None:
    found = shares({"a": 1.0, "b": 1.0, "c": 2.0}, {"a": 0.2, "b": None, "c": 0.3}, 0.0)
    # f·p = 0.05 and 0.15 divide 3/4
    assert found == pytest.approx({"a": 0.1875, "b": 0.25, "c": 0.5625})


@given(
    weights=weight_maps,
    learned=st.dictionaries(tasks, st.none() | st.floats(0.0, 1.0)),
    part=st.floats(0.0, 1.0),
)
def test_shares_sum_to_one_and_hold_the_floor(
    weights: dict[str, float], learned: dict[str, float | None], part: float
) -> None:
    floor = part / len(weights)
    found = shares(weights, {t: p for t, p in learned.items() if t in weights}, floor)
    assert found.keys() == weights.keys()
    assert sum(found.values()) == pytest.approx(1.0, abs=EXACT)
    assert min(found.values()) >= floor - EXACT


def test_what_is_owed_is_carried_over() -> None:
    of = {"a": 0.75, "b": 0.25}
    assert carry_debts(of, {}, {"a": 2, "b": 2}) == {"a": 1.0, "b": -1.0}
    assert carry_debts(of, {"a": -0.5, "b": 0.5}, {"a": 3}) == {"a": -1.25, "b": 1.25}
    assert next_task(of, {"a": -0.5, "b": 0.5}) == "b"
    assert next_task({"a": 0.5, "b": 0.5}, {"a": 0.0, "b": 0.0}) == "a"
    assert debts_after("b", of, {"a": -0.5, "b": 0.5}) == {"a": 0.25, "b": -0.25}


@given(weights=weight_maps, cut=st.integers(0, 200))
def test_tasks_come_by_their_shares_whenever_the_count_begins_anew(
    weights: dict[str, float], cut: int
) -> None:
    of = shares(weights, {}, 0.0)
    admitted: Counter[str] = Counter()
    behind = dict.fromkeys(of, 0.0)
    for number in range(400):
        if number == cut:  # another dispatcher, or a new decision of the same shares
            behind = carry_debts(of, dict.fromkeys(of, 0.0), admitted)
        task = next_task(of, behind)
        behind = debts_after(task, of, behind)
        admitted[task] += 1
    for task, share in of.items():
        assert abs(admitted[task] - 400 * share) < len(weights)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(tasks={"a": Task(horizons=[(0, 5), (0, 8)])}), r"tasks\.a\.horizons: .*\[0, 0\]"),
        (Config(tasks={"a": Task()}, dispatch=Dispatch(window=(0.9, 0.1))), r"0\.9 exceeds 0\.1"),
        (
            Config(
                tasks={"a": Task(), "b": Task()},
                dispatch=Dispatch(mixing="progress", mixing_floor=0.6),
            ),
            r"mixing_floor: 0\.6 is more",
        ),
    ],
)
def test_a_curriculum_that_contradicts_itself_is_refused(config: Config, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(config.dispatch, config.tasks)
