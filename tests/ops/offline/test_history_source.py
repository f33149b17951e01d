"""The order, the bounds and the roll-back of a training on a history."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
from planted_run import SPREAD, PlantedRun

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import External, PolicyServer
from agentrl.core.config.sections.training import Teacher
from agentrl.core.errors import ConfigError
from agentrl.core.types import GroupState, Reason, RunState
from agentrl.db.models.runs import Run
from agentrl.db.queries import history_batches
from agentrl.db.queries.history_batches import HistoryBatch
from agentrl.db.store import now
from agentrl.db.transitions import groups, runs
from agentrl.db.transitions.trajectories import group_copies
from agentrl.ops.offline.history_source import History, HistorySource
from agentrl.ops.offline.train_from import OfflineRequest, read_history, train_from
from agentrl.ops.runs.lifecycle import RunPlace
from agentrl.trainer.group_selection import InboxBounds

COPY = "copy-1"
BOUNDS = InboxBounds(2, 3, 1, 1, None, 3)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[PlantedRun]:
    """Five groups, and a run that copies them."""
    with PlantedRun.begun(tmp_path) as world:
        for position in range(5):
            world.plant(position, "dbbench", SPREAD if position != 1 else (0.0,) * 4)
        with world.store.write() as session:
            session.add(
                Run(
                    run_id=COPY,
                    name="copy",
                    config="{}",
                    seed=0,
                    state=RunState.RUNNING,
                    created_at=now(),
                )
            )
        yield world


def batches(history: PlantedRun, *positions: Sequence[int]) -> list[HistoryBatch]:
    names = [[f"{history.run_id}-dbbench-{place}" for place in batch] for batch in positions]
    return [
        HistoryBatch(number, tuple((name, name) for name in batch))
        for number, batch in enumerate(names, 1)
    ]


class Reader:
    """A trainer that only reads its batches, as positions."""

    def __init__(
        self,
        history: PlantedRun,
        looked_at: Sequence[HistoryBatch],
        bounds: InboxBounds = BOUNDS,
    ) -> None:
        self.store = history.store
        self.epoch = self.store.transact(partial(runs.begin_epoch, run_id=COPY))
        self.source = HistorySource(self.store, COPY, bounds, History(looked_at, {}))

    def next(self, version: int = 0) -> list[str]:
        found = self.source.next_groups(version, self.epoch, threading.Event(), lambda: False)
        groups = [*found.trained, *found.left_out] if found else []
        return [group.group_id.removeprefix(f"{COPY}-dbbench-") for group in groups]

    def close(self, *places: str, state: GroupState = GroupState.TRAINED) -> None:
        names = [f"{COPY}-dbbench-{place}" for place in places]
        with self.store.write() as session:
            groups.close_groups(session, names, state, None)


def states(history: PlantedRun) -> dict[str, tuple[str, str | None]]:
    rows = history.ask("SELECT group_id, state, reason FROM groups WHERE run_id = :r", r=COPY)
    return {name.removeprefix(f"{COPY}-dbbench-"): (state, why) for name, state, why in rows}


def test_batches_keep_their_order_and_their_bounds(history: PlantedRun) -> None:
    reader = Reader(history, batches(history, (0, 1), (2, 3, 4), ()))
    assert reader.next() == ["0", "2", "3"]  # one is too few, and four are too many
    reader.close("0", "2", "3")
    assert reader.next(1) == []
    assert reader.source.is_used_up
    assert states(history) == {
        "0": ("trained", None),
        "1": ("filtered", Reason.ZERO_SPREAD),
        "2": ("trained", None),
        "3": ("trained", None),
        "4": ("ready", None),
    }


def test_groups_that_became_too_old_are_closed(history: PlantedRun) -> None:
    reader = Reader(history, batches(history, (0, 2), (3, 4)))
    assert reader.next(1) == ["0", "2"]
    reader.close("0", "2")
    assert reader.next(2) == []
    assert states(history)["3"] == states(history)["4"] == ("stale", Reason.TOO_STALE)
    with history.store.read() as session:
        found = group_copies.count_outcomes(session, COPY)
    assert dict(found[GroupState.STALE]) == {2: 2}


def test_a_trainer_that_was_killed_reads_again_what_was_rolled_back(history: PlantedRun) -> None:
    looked_at = batches(history, (0, 2), (3, 4))
    reader = Reader(history, looked_at)
    assert reader.next() == ["0", "2"]
    reader.close("0", "2")
    assert reader.next() == ["3", "4"]
    history.sql(
        "UPDATE groups SET state = 'rolled_back', reason = 'rolled_back'"
        " WHERE run_id = :r AND position = 2",
        r=COPY,
    )
    again = Reader(history, looked_at)
    assert again.next() == ["2r1", "3", "4"]  # 0 stays trained, 3 and 4 were ready
    assert states(history)["2"] == ("rolled_back", "rolled_back")
    with history.store.read() as session:
        read = history_batches.read_batches(session, COPY)
    newest = [name.rpartition("-")[2] for batch in read for name, _ in batch.group_ids]
    assert newest == ["0", "2r1", "3", "4"]


def test_a_trainer_that_was_killed_during_an_update_takes_the_same_batch(
    history: PlantedRun,
) -> None:
    bounds, looked_at = replace(BOUNDS, keep_share=0.5), batches(history, (0, 2, 3), (4,))
    for _ in range(2):
        reader = Reader(history, looked_at, bounds)
        assert reader.next() == ["0", "2", "3"]
    reader.close("0", "2")
    reader.close("3", state=GroupState.FILTERED)
    assert Reader(history, looked_at, replace(bounds, min_groups=1)).next() == ["4"]
    history.sql(
        "UPDATE groups SET state = 'rolled_back' WHERE run_id = :r AND position < 4", r=COPY
    )
    assert Reader(history, looked_at, bounds).next() == ["0r1", "2r1", "3r1"]


def test_a_policy_of_the_history_is_away_by_the_updates_of_both_lines(
    history: PlantedRun,
) -> None:
    """Nothing is away under the run's own settings; all since version 0 under others."""
    name = history.plant(7, "dbbench", SPREAD, version=2)
    history.commit(1, f"{history.run_id}-dbbench-0")
    history.commit(2, name)
    away = {f"{history.run_id}-v2": 0}
    with history.store.read() as session:
        run = history.run()
        assert read_history(session, run, history.config, None).forks == {}
        assert read_history(session, run, history.config, 5).forks == away
    taught = taught_by(history.config, External(url="http://gpu/v1", model="big", max_requests=9))
    history.sql("UPDATE runs SET config = :c", c=config_loading.dumps(taught))
    richer = taught_by(history.config, External(url="http://gpu/v1", model="big", concurrency=2))
    another = taught_by(history.config, External(url="http://gpu/v1", model="small"))
    with history.store.read() as session:
        run = history.run()
        assert read_history(session, run, richer, None).forks == {}
        assert read_history(session, run, another, None).forks == away


@pytest.mark.parametrize(("position", "fork"), [(0, 0), (7, 1), (1, None), (4, None)])
def test_a_policy_is_away_by_the_updates_since_a_group_lost_its_bodies(
    history: PlantedRun, position: int, fork: int | None
) -> None:
    """Unless no update looked at the group."""
    name = history.plant(7, "dbbench", SPREAD, version=2)
    history.commit(1, f"{history.run_id}-dbbench-0")
    history.commit(2, name)
    history.sql(
        "UPDATE trajectories SET body = :b WHERE episode_id LIKE :e",
        b=b"",
        e=f"{history.run_id}-dbbench-{position}-3",
    )
    with history.store.read() as session:
        forks = read_history(session, history.run(), history.config, None).forks
    assert forks == ({} if fork is None else {f"{history.run_id}-v2": fork})


def test_a_weight_of_a_task_that_is_not_there_is_refused(history: PlantedRun) -> None:
    place = RunPlace(history.config.store_url(), "learned", history.config.home())
    request = OfflineRequest(place, "weighed", changes=["trainer.task_weights={alfworl=0.0}"])
    with pytest.raises(ConfigError, match="unknown task alfworl; did you mean alfworld"):
        train_from(request, threading.Event())


def test_an_episode_of_several_policies_is_refused_before_a_run_is_made(
    history: PlantedRun,
) -> None:
    history.commit(1, f"{history.run_id}-dbbench-0")
    place = RunPlace(history.config.store_url(), "learned", history.config.home())
    request = OfflineRequest(place, "sequences", changes=["trainer.loss=gspo"])
    mixed = "UPDATE steps SET checkpoint_id = 'other' WHERE number = 1 AND episode_id LIKE :e"
    history.sql(mixed, e="%-dbbench-3-1")  # at which no update looked
    with history.store.read() as session:
        assert len(history_batches.mixed_episodes(session, history.run_id)) == 1
    history.sql(mixed, e="%-dbbench-0-1")
    with pytest.raises(ConfigError, match=r"episode .*-dbbench-0-1 has several policies"):
        train_from(request, threading.Event())
    assert history.ask("SELECT name FROM runs WHERE name = 'sequences'") == []


def taught_by(config: Config, external: External) -> Config:
    """Return the configuration with a teacher behind this API."""
    servers = [*config.policy_servers(), PolicyServer("api", "external", external=external)]
    teachers = [Teacher(name="elder", checkpoint="external(api)")]
    return msgspec.structs.replace(config, policy=servers, teacher=teachers)
