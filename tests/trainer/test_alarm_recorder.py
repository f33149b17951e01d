import dataclasses
from functools import partial
from typing import Any

import pytest
import structlog
from run_transitions import World

from agentrl.core.config.sections.training import Alarms
from agentrl.core.types import UpdateState
from agentrl.db.store import Store
from agentrl.db.transitions import alarms, updates
from agentrl.db.transitions.alarms import AlarmReading
from agentrl.db.transitions.updates import NewUpdate
from agentrl.trainer.alarm_recorder import AlarmRecorder, log_alarms

LOUD, CALM = {"dbbench/max_ratio": 500.0}, {"dbbench/max_ratio": 2.0}


@pytest.fixture
def world(store: Store) -> World:
    world = World.begin(store)
    world.begin_epoch()
    return world


def _watch(world: World, **keys: Any) -> AlarmRecorder:
    return AlarmRecorder(Alarms(**keys), 1.0, world.run_id)


def _new(world: World, version: int, metrics: dict[str, float], skipped: str = "") -> NewUpdate:
    """The update to `version`, of one group that is ready."""
    return world.new_update(
        version,
        world.ready(100 + version),
        1,
        update_id=f"u{version}",
        state=UpdateState.SKIPPED if skipped else UpdateState.COMMITTED,
        reason=skipped,
        checkpoint=world.checkpoint(version, parent_id=f"{world.run_id}-v{version - 1}"),
        metrics=metrics,
        started_at=10.0 * version,
    )


def _commit(
    world: World, version: int, metrics: dict[str, float], skipped: str = "", **keys: Any
) -> list[tuple[str, bool]]:
    """What is told with the update."""
    new = _new(world, version, metrics, skipped)
    told = world.store.transact(lambda session: _watch(world, **keys).commit(session, new))
    return [(each.name, each.raised) for each in told]


def _stand(world: World) -> list[str]:
    with world.store.read() as session:
        return [each.name for each in alarms.raised_alarms(session, world.run_id)]


def test_an_alarm_has_a_row_when_it_begins_and_a_row_when_it_ends(world: World) -> None:
    assert _commit(world, 1, LOUD) == [("max_ratio", True)]
    assert _commit(world, 2, LOUD) == []
    assert _stand(world) == ["max_ratio"]
    assert _commit(world, 3, CALM) == [("max_ratio", False)]
    assert _stand(world) == []
    assert _commit(world, 4, LOUD) == [("max_ratio", True)]
    rows = world.ask(
        "SELECT update_id, version, task, value, threshold, ended_at IS NULL, raised_at "
        "FROM alarms ORDER BY alarm_id"
    )
    assert [(*row[:5], bool(row[5])) for row in rows] == [
        ("u1", 1, "dbbench", 500.0, 100.0, True),
        ("u3", 3, "dbbench", 2.0, 100.0, False),
        ("u4", 4, "dbbench", 500.0, 100.0, True),
    ]
    assert rows[0][6] == rows[1][6] < rows[2][6]


def test_an_alarm_that_is_switched_off_ends_with_the_next_update(world: World) -> None:
    assert _commit(world, 1, LOUD) == [("max_ratio", True)]
    assert _commit(world, 2, {}) == []
    assert _commit(world, 3, {}, off=["max_ratio"]) == [("max_ratio", False)]
    assert _stand(world) == []


def test_the_alarm_of_a_task_ends_once_it_has_had_no_group_for_ten_updates(world: World) -> None:
    assert _commit(world, 1, {"removed/max_ratio": 500.0}) == [("max_ratio", True)]
    assert [_commit(world, version, {}) for version in range(2, 12)] == [[]] * 10
    assert _commit(world, 12, {}) == [("max_ratio", False)]


def test_an_update_that_is_refused_leaves_no_alarm(world: World) -> None:
    new = dataclasses.replace(_new(world, 1, LOUD), epoch=0)
    with pytest.raises(updates.TrainerReplaced):
        world.store.transact(lambda session: _watch(world).commit(session, new))
    assert world.ask("SELECT * FROM alarms") == []


def test_a_commit_that_is_repeated_tells_the_same_and_writes_nothing(world: World) -> None:
    new = _new(world, 1, LOUD)
    twice = [world.store.transact(lambda s: _watch(world).commit(s, new)) for _ in "ab"]
    assert twice[0] == twice[1]
    assert [each.name for each in twice[0]] == ["max_ratio"]
    assert world.ask("SELECT COUNT(*) FROM alarms") == [(1,)]


def test_what_a_rolled_back_update_told_is_untold(world: World) -> None:
    _commit(world, 1, LOUD)
    _commit(world, 2, CALM)
    _commit(world, 3, CALM | {"grad_norm": 99.0})
    assert _stand(world) == ["grad_norm"]
    world.sql("UPDATE updates SET state = 'rolled_back' WHERE version > 1")
    assert _stand(world) == ["max_ratio"]


def test_a_skipped_update_is_told_of_with_its_reason(world: World) -> None:
    assert _commit(world, 1, {}, "loss is not finite") == [("skipped", True)]
    assert _commit(world, 2, {}) == [("skipped", False)]


def test_the_fall_of_entropy_is_from_updates_of_late(world: World) -> None:
    for version in (1, 2, 3):
        assert _commit(world, version, {"dbbench/entropy": 0.4}) == []
    assert _commit(world, 4, {"dbbench/entropy": 0.1}) == [("entropy_fall", True)]


def test_the_fall_of_the_spread_of_rewards_is_from_the_first_updates(world: World) -> None:
    for version in range(1, 11):
        assert _commit(world, version, {"dbbench/reward_std": 0.4}, min_groups=1) == []
    told = []
    for version in range(11, 15):
        told += _commit(world, version, {"dbbench/reward_std": 0.3}, min_groups=1)
    assert told == []
    for position in range(2):
        world.ready(position, (1.0, 1.0))
    world.sql("UPDATE groups SET state = 'filtered', closed_at = 145 WHERE state = 'ready'")
    metrics = {"dbbench/reward_std": 0.3}  # of one group; two have none: 1 - 0.1 / 0.4
    assert _commit(world, 15, metrics, min_groups=3) == [("reward_std_fall", True)]
    assert _metrics(world, "u15")["dbbench/reward_std"] == pytest.approx(0.1)
    assert world.ask("SELECT value FROM alarms") == [(pytest.approx(0.75),)]


def test_groups_without_spread_since_the_last_update_are_counted(world: World) -> None:
    for position in range(8):
        world.ready(position, (1.0, 1.0))
    world.sql("UPDATE groups SET state = 'filtered', closed_at = 5")
    assert _commit(world, 1, {}) == [("zero_spread_share", True)]
    (share,) = world.ask("SELECT value FROM alarms")[0]
    assert share == pytest.approx(8 / 9)
    metrics = _metrics(world, "u1")
    assert (metrics["dbbench/groups"], metrics["dbbench/failed_groups"]) == (9.0, 0.0)
    _commit(world, 2, {}, min_groups=1)
    assert _metrics(world, "u2")["dbbench/zero_spread_share"] == 0.0
    assert _stand(world) == []


def test_groups_closed_while_an_update_is_published_count_for_the_next_one(world: World) -> None:
    for position in range(3):
        world.ready(position, (1.0, 1.0))
    world.sql("UPDATE groups SET state = 'filtered', closed_at = 15")  # u1 started at 10
    _commit(world, 1, {})
    _commit(world, 2, {})
    groups = [_metrics(world, name)["dbbench/groups"] for name in ("u1", "u2")]
    assert groups == [1.0, 4.0]


def _metrics(world: World, update_id: str) -> dict[str, float]:
    with world.store.read() as session:
        metrics: dict[str, float] = session.get_one(updates.Update, update_id).metrics
        return metrics


def test_a_run_whose_groups_never_train_is_not_silent(world: World) -> None:
    for position in range(3):
        world.ready(position, (1.0, 1.0))
    world.sql("UPDATE groups SET state = 'filtered', closed_at = 1e9 WHERE position < 2")
    watch = _watch(world, min_groups=2)
    watch.record_group_alarms(world.store, 0, epoch=1)  # two of three: one still waits with spread
    assert _stand(world) == []
    world.sql("UPDATE groups SET state = 'filtered', closed_at = 1e9")
    watch.record_group_alarms(world.store, 0, epoch=2)  # another trainer's
    assert _stand(world) == []
    with structlog.testing.capture_logs() as lines:
        watch.record_group_alarms(world.store, 0, epoch=1)
        watch.record_group_alarms(world.store, 0, epoch=1)
    assert [line["alarm"] for line in lines] == ["zero_spread_share"]
    assert _stand(world) == ["zero_spread_share"]
    assert world.ask("SELECT update_id, version, value FROM alarms") == [(None, 0, 1.0)]


def test_a_group_left_out_of_an_update_counts_once_as_one_with_spread(world: World) -> None:
    for version in (1, 2):
        left_out = [world.ready(version + 10 * n)[0].group_id for n in range(4)]
        new = dataclasses.replace(_new(world, version, {}), left_out=left_out)
        assert world.store.transact(partial(_watch(world).commit, new=new)) == []
        metrics = _metrics(world, f"u{version}")
        assert (metrics["dbbench/groups"], metrics["dbbench/zero_spread_share"]) == (5.0, 0.0)


def test_what_is_ready_but_not_learned_from_is_not_counted_yet(world: World) -> None:
    for position in range(5):
        world.ready(position, (1.0, 1.0))
    world.sql("UPDATE groups SET state = 'filtered', closed_at = 1 WHERE position < 4")
    assert _commit(world, 1, {}, min_groups=5, max_zero_spread_share=0.7) == [
        ("zero_spread_share", True)
    ]
    assert world.ask("SELECT value FROM alarms") == [(0.8,)]
    _watch(world, min_groups=1).record_group_alarms(world.store, 1, epoch=1)
    assert _stand(world) == ["zero_spread_share"]  # only an update ends it


def test_the_log_warns_once_and_says_why() -> None:
    skipped = AlarmReading("", "skipped", 1.0, 0.0, raised=True)
    ended = AlarmReading("db", "max_ratio", 2.0, 100.0, raised=False)
    with structlog.testing.capture_logs() as lines:
        log_alarms([skipped, ended], 4, "no loss token")
    assert [(line["log_level"], line["event"], line["reason"]) for line in lines] == [
        ("warning", "Alarm raised", "no loss token"),
        ("info", "Alarm ended", ""),
    ]
