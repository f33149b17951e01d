import math
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.core.config.sections.training import AlarmName, Alarms
from agentrl.core.types import GroupState
from agentrl.db.transitions.alarms import AlarmReading, RaisedAlarm
from agentrl.trainer.algorithm.alarms import (
    RULES,
    SHARES,
    EarlierMetrics,
    alarm_changes,
    ending_readings,
    group_metrics,
    relative_fall,
    share_readings,
    update_readings,
)

CALM = {
    "grad_norm": 0.3,
    "db/effective_sample_size": 0.97,
    "db/mismatch_k3": 0.001,
    "db/max_ratio": 1.4,
    "db/clip_fraction": 0.02,
    "snapshot_failed": 0.0,
    "db/entropy": 0.2,
    "db/reward_std": 0.4,
}
LATE = [{"db/entropy": 0.2}, {"db/entropy": 0.3}, {"db/entropy": 0.4}]
FIRST = [{"db/reward_std": 0.3}, {"db/reward_std": 0.5}, {"db/reward_std": 0.4}]
ENTROPY, REWARD_STD = "db/entropy", "db/reward_std"


def _readings(
    metrics: dict[str, float],
    late: Sequence[dict[str, float]] = LATE,
    first: Sequence[dict[str, float]] = FIRST,
    *,
    skipped: str = "",
    **keys: Any,
) -> list[AlarmReading]:
    earlier = EarlierMetrics(first=first, last=late)
    return update_readings(metrics, earlier, Alarms(**keys), 1.0, skipped=skipped)


def _raised(readings: Sequence[AlarmReading]) -> list[tuple[str, str, float, float]]:
    return [(r.task, r.name, r.value, r.threshold) for r in readings if r.raised]


def test_a_calm_update_raises_nothing_and_tells_of_every_alarm() -> None:
    readings = _readings(CALM | group_metrics({"db": {GroupState.READY: 9}}))
    assert _raised(readings) == []
    assert {each.name for each in readings} == set(get_args(AlarmName))


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("db/effective_sample_size", 0.49, ("db", "effective_sample_size", 0.49, 0.5)),
        ("db/mismatch_k3", 0.06, ("db", "mismatch_kl", 0.06, 0.05)),
        ("db/max_ratio", 101.0, ("db", "max_ratio", 101.0, 100.0)),
        ("db/clip_fraction", 0.31, ("db", "clip_fraction", 0.31, 0.3)),
        ("grad_norm", 10.5, ("", "grad_norm", 10.5, 10.0)),
    ],
)
def test_each_threshold_is_of_its_own_metric(
    metric: str, value: float, expected: tuple[str, str, float, float]
) -> None:
    assert _raised(_readings(CALM | {metric: value})) == [expected]
    (threshold,) = [r.threshold for r in _readings(CALM) if r.name == expected[1]]
    assert _raised(_readings(CALM | {metric: threshold})) == []


def test_entropy_is_too_low_or_falls_too_fast() -> None:
    low = _readings(CALM | {"db/entropy": 0.009}, late=[])
    assert _raised(low) == [("db", "entropy", 0.009, 0.01)]
    fallen = _raised(_readings(CALM | {"db/entropy": 0.12}))  # 1 - 0.12 / 0.3
    assert fallen == [("db", "entropy_fall", pytest.approx(0.6), 0.5)]
    assert relative_fall(ENTROPY, CALM, LATE) == pytest.approx(1 / 3)
    assert relative_fall(ENTROPY, CALM, [*LATE[:2], {"os/entropy": 9.0}]) is None
    long = [{"db/entropy": 0.4}] * 10 + [{"db/entropy": 99.0}]
    assert relative_fall(ENTROPY, CALM, long) == pytest.approx(0.5)


def test_the_spread_of_rewards_falls_below_its_level_when_the_run_began() -> None:
    low = CALM | {REWARD_STD: 0.1, "db/groups": 8.0}  # 1 - 0.1 / 0.4
    late = [{**each, REWARD_STD: 0.1} for each in LATE]  # it has been low for long
    expected = [("db", "reward_std_fall", pytest.approx(0.75), 0.5)]
    assert _raised(_readings(low, late)) == expected
    assert _raised(_readings(low, late, max_reward_std_fall=0.8)) == []
    assert _raised(_readings(low, late, FIRST[:2])) == [], "too few updates"
    assert _raised(_readings(low | {"db/groups": 7.0}, late)) == [], "too few groups"
    stale = low | {"db/groups": 8.0, "db/stale_share": 1 / 8}
    assert _raised(_readings(stale, late)) == [], "stale groups have no share in the mean"
    assert _raised(_readings(stale, late, min_groups=7)) == expected
    assert _raised(_readings(low, late, [{REWARD_STD: 0.0}] * 9)) == [], "there was none"


def test_large_gradients_are_told_in_terms_of_where_they_are_clipped() -> None:
    (reading,) = [
        r
        for r in update_readings(
            CALM | {"grad_norm": 6.0}, EarlierMetrics(), Alarms(), 0.5, skipped=""
        )
        if r.name == "grad_norm"
    ]
    assert (reading.threshold, reading.raised) == (5.0, True)


def test_a_skipped_update_is_an_alarm_of_its_own() -> None:
    assert _raised(_readings({}, skipped="loss is not finite")) == [("", "skipped", 1.0, 0.0)]


def test_a_snapshot_that_failed_is_an_alarm_until_one_is_saved() -> None:
    assert _raised(_readings({"snapshot_failed": 1.0})) == [("", "snapshot_failed", 1.0, 0.0)]
    assert "snapshot_failed" not in {reading.name for reading in _readings({})}, "none was due"


def test_shares_are_of_groups_that_closed_or_are_ready() -> None:
    counts = {
        "db": {GroupState.FILTERED: 9, GroupState.STALE: 0, GroupState.READY: 1},
        "os": {GroupState.FILTERED: 2, GroupState.STALE: 3, GroupState.READY: 5},
        "kg": {GroupState.FAILED: 4},
    }
    metrics = group_metrics(counts)
    assert metrics["db/zero_spread_share"] == 0.9
    assert (metrics["os/zero_spread_share"], metrics["os/stale_share"]) == (0.2, 0.3)
    assert (metrics["kg/groups"], metrics["kg/failed_groups"]) == (0.0, 4.0)
    assert "kg/stale_share" not in metrics
    told = _raised(share_readings(metrics, Alarms()))
    assert told == [("db", "zero_spread_share", 0.9, 0.8), ("os", "stale_share", 0.3, 0.2)]
    assert share_readings(metrics, Alarms(min_groups=11)) == []


def test_the_spread_of_rewards_is_a_mean_over_groups_with_and_without_spread() -> None:
    counts = {
        "db": {GroupState.FILTERED: 3, GroupState.STALE: 9, GroupState.READY: 1},
        "os": {GroupState.FILTERED: 2},
        "kg": {GroupState.READY: 2},
        "web": {GroupState.STALE: 2},
    }
    metrics = group_metrics(counts, {REWARD_STD: 0.4, "kg/reward_std": 0.3})
    found = {name: value for name, value in metrics.items() if name.endswith("/reward_std")}
    assert found == {REWARD_STD: pytest.approx(0.1), "os/reward_std": 0.0, "kg/reward_std": 0.3}
    between_updates = group_metrics({"db": {GroupState.FILTERED: 3, GroupState.READY: 1}})
    assert REWARD_STD not in between_updates, "the spread of ready groups is not known yet"


def test_each_alarm_can_be_switched_off_and_then_ends() -> None:
    loud = dict.fromkeys(CALM, 1e9) | {"db/effective_sample_size": 0.0, "db/entropy": 0.0}
    loud |= group_metrics({"db": {GroupState.FILTERED: 90, GroupState.STALE: 60}})
    loud |= {"db/zero_spread_share": 0.9, "db/reward_std": 0.0}
    every = _readings(loud, skipped="x")
    assert {name for _, name, _, _ in _raised(every)} == set(get_args(AlarmName))
    for name in get_args(AlarmName):
        some = _readings(loud, skipped="x", off=[name])
        assert {r.name for r in some if not r.raised} == {name}
    standing = [_standing("db", "max_ratio")]
    told = alarm_changes(_readings(loud, skipped="x", off=list(get_args(AlarmName))), standing)
    assert [(each.name, each.raised) for each, _ in told] == [("max_ratio", False)]


def test_an_alarm_without_a_reading_ends_if_it_is_switched_off_or_its_task_is_gone() -> None:
    entropy, failed = _standing("os", "entropy"), _standing("", "snapshot_failed")
    standing = [entropy, failed, _standing("db", "max_ratio")]
    ended = AlarmReading("os", "entropy", 1.0, 0.0, raised=False)
    now, before = {"db/groups": 8.0}, {"db/groups": 8.0, "os/groups": 1.0}

    def ends(late: Sequence[dict[str, float]], *off: AlarmName) -> list[AlarmReading]:
        return ending_readings(now, EarlierMetrics(last=late), Alarms(off=[*off]), standing)

    assert ends([now] * 9 + [before]) == ends([now] * 9) == []
    assert ends([now] * 10) == [ended]
    assert ends([before], "entropy") == [ended]
    off = ends([before], "snapshot_failed")
    assert off == [AlarmReading("", "snapshot_failed", 1.0, 0.0, raised=False)]


def test_an_alarm_is_told_of_when_it_begins_and_when_it_ends() -> None:
    high = AlarmReading("db", "max_ratio", 200.0, 100.0, raised=True)
    calm = AlarmReading("db", "max_ratio", 2.0, 100.0, raised=False)
    other = _standing("os", "max_ratio")
    assert alarm_changes([high], [other]) == [(high, None)]
    stands = _standing("db", "max_ratio")
    assert alarm_changes([high], [stands, other]) == []
    assert alarm_changes([calm], [stands, other]) == [(calm, stands)]
    assert alarm_changes([calm], [other]) == []
    assert alarm_changes([], [stands]) == []


def _standing(task: str, name: str) -> RaisedAlarm:
    return RaisedAlarm(task, name, 1.0, 0.0, 3, 60.0, 1000.0)


names = st.sampled_from(["grad_norm", "loss", *(f"a/{r.metric}" for r in (*RULES, *SHARES))])
metric_maps = st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False))


@given(metrics=metric_maps, late=st.lists(metric_maps, max_size=12), skipped=st.sampled_from("x "))
def test_told_twice_the_second_time_says_nothing(
    metrics: dict[str, float], late: list[dict[str, float]], skipped: str
) -> None:
    readings = _readings(metrics, late, skipped=skipped.strip())
    assert len({(r.task, r.name) for r in readings}) == len(readings)
    told = alarm_changes(readings, [])
    assert [each for each, _ in told] == [r for r in readings if r.raised]
    standing = [_standing(each.task, each.name) for each, _ in told]
    assert alarm_changes(readings, standing) == []
    assert not any(math.isnan(r.value) for r in readings if r.name != "entropy_fall")
