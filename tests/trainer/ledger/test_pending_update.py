"""An update that a trainer kept because it could not commit it: the next trainer commits it."""

import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faulty_filesystem
import pytest
from faulty_filesystem import FaultyFileSystem
from ledgers import (
    METRICS,
    CountingLearner,
    LedgerFactory,
    commit,
    ready_groups,
    saved_counts,
    step,
)
from run_transitions import World
from sqlalchemy import event

from agentrl.checkpoints.checkpoint_store import CheckpointStore, TransferLimits, WeightsAway, fetch
from agentrl.core.config.config import Config
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import StoreError, StoreUnavailable
from agentrl.core.types import GroupState, Reason
from agentrl.db.transitions import lifecycle
from agentrl.db.transitions.updates import TeacherScore
from agentrl.trainer.batch import TakenGroups, TrainableGroup
from agentrl.trainer.engines.learner import Metrics
from agentrl.trainer.ledger import Ledger


def _interrupt_commit(
    world: World,
    ledgers: LedgerFactory,
    group: TrainableGroup,
    error: StoreError,
    *,
    metrics: Metrics = METRICS,
    left_out: Sequence[TrainableGroup] = (),
) -> None:
    """End a trainer by an error of the database while it commits version 2."""
    ledger, learner = ledgers.open(), CountingLearner()
    at = step(world, ledger, learner, ledger.resume(learner), 0)
    learner.count += 1

    @event.listens_for(world.store.engine, "before_cursor_execute")
    def fail(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if statement.startswith("INSERT INTO update_groups"):
            raise error

    with pytest.raises(type(error)):
        commit(ledger, learner, at, TakenGroups([group], left_out), metrics)
    event.remove(world.store.engine, "before_cursor_execute", fail)
    assert world.run().version == 1


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreError("another password")])
def test_an_update_that_the_database_did_not_take_is_committed_by_the_next_trainer(
    world: World, ledgers: LedgerFactory, error: StoreError
) -> None:
    (group,) = ready_groups(world, 7)
    _interrupt_commit(world, ledgers, group, error)
    fresh, after = CountingLearner(), ledgers.open()
    at = after.resume(fresh)
    assert (at.version, fresh.count, world.run().version) == (2, 2, 2)
    assert world.group(group.group_id).state == GroupState.TRAINED
    assert world.ask("SELECT state, COUNT(*) FROM updates GROUP BY state") == [("committed", 2)]
    at = step(world, after, fresh, at, 1)
    assert at.version == 3
    assert world.accounting() == []


def test_the_next_trainer_commits_the_teachers_scores_too(
    world: World, ledgers: LedgerFactory
) -> None:
    (group,) = ready_groups(world, 7)
    score = TeacherScore("specialist", "other-v000009-abc", "d" * 64, 0.25)
    scores = [score, *(None for _ in group.members[1:])]
    metrics = Metrics({"loss": 0.5}, teacher_scores=scores)
    _interrupt_commit(world, ledgers, group, StoreUnavailable("away"), metrics=metrics)
    ledgers.open().resume(CountingLearner())
    rows = world.ask(
        "SELECT episode_id, teacher, teacher_checkpoint, teacher_digest, reverse_kl"
        " FROM update_groups WHERE teacher IS NOT NULL"
    )
    scored = group.members[0].episode_id
    assert rows == [(scored, "specialist", "other-v000009-abc", "d" * 64, 0.25)]


def test_the_next_trainer_closes_the_groups_left_out_of_the_update(
    world: World, ledgers: LedgerFactory
) -> None:
    group, other = ready_groups(world, 7, 8)
    _interrupt_commit(world, ledgers, group, StoreUnavailable("away"), left_out=[other])
    assert world.group(other.group_id).state == GroupState.READY
    assert ledgers.open().resume(CountingLearner()).version == 2
    assert world.group(other.group_id).reason == Reason.LOW_SPREAD


def test_an_update_whose_group_changed_since_is_not_committed(
    world: World, ledgers: LedgerFactory
) -> None:
    (group,) = ready_groups(world, 7)
    _interrupt_commit(world, ledgers, group, StoreUnavailable("away"))
    world.sql("UPDATE groups SET state = 'open' WHERE group_id = :g", g=group.group_id)
    fresh = CountingLearner()
    at = ledgers.open().resume(fresh)
    assert (at.version, fresh.count) == (0, 0), "there is no snapshot before it"
    assert [*(ledgers.home / "checkpoints").glob("*.snapshot")] == []


def test_a_pending_update_moves_with_the_folder_of_the_run(
    world: World, ledgers: LedgerFactory
) -> None:
    (group,) = ready_groups(world, 7)
    _interrupt_commit(world, ledgers, group, StoreUnavailable("away"))
    moved = (ledgers.home / "checkpoints").rename(ledgers.home / "moved")
    present = {path.name for path in moved.iterdir()}
    world.store.transact(lambda s: lifecycle.relocate(s, world.run_id, moved, present))
    fresh = CountingLearner()
    assert ledgers.open(checkpoints=CheckpointStore(moved)).resume(fresh).version == 2
    assert fresh.count == 2
    assert saved_counts(world) == {1: 1, 2: 2}
    ((snapshot,),) = world.ask("SELECT snapshot_path FROM checkpoints WHERE version = 2")
    assert Path(snapshot).parent == moved


def _remote_ledger(
    ledgers: LedgerFactory, stop: threading.Event | None = None, url: str = "faulty://far"
) -> Ledger:
    """Open a ledger whose checkpoints lie under a URL; each file is tried once."""
    limits = TransferLimits(upload_s=0.0, fetch_s=0.0, call_s=60.0)
    folders = (ledgers.home / "checkpoints", ledgers.home / "cache")
    checkpoints = CheckpointStore(*folders, url, stop or threading.Event(), limits)
    return ledgers.open(Config(tasks={"dbbench": Task()}), checkpoints=checkpoints)


@pytest.mark.parametrize("url", ["faulty://far", "faulty://other"])
def test_an_update_that_the_object_store_did_not_take_is_committed_by_the_next_trainer(
    world: World, ledgers: LedgerFactory, url: str
) -> None:
    """Also if `run.checkpoints` has changed in between."""
    faulty_filesystem.register()
    stop, learner = threading.Event(), CountingLearner()
    ledger = _remote_ledger(ledgers, stop)
    at = step(world, ledger, learner, ledger.resume(learner), 0)
    (group,) = ready_groups(world, 7)
    FaultyFileSystem.faults[:] = [OSError("the object store is away")] * 1000
    stop.set()
    learner.count += 1
    with pytest.raises(WeightsAway, match="the object store is away"):
        commit(ledger, learner, at, TakenGroups([group]))
    assert world.run().version == 1
    FaultyFileSystem.faults.clear()
    fresh = CountingLearner()
    again = _remote_ledger(ledgers, url=url).resume(fresh)
    assert (again.version, fresh.count, world.run().version) == (2, 2, 2)
    ((path,),) = world.ask("SELECT path FROM checkpoints WHERE version = 2")
    assert path.startswith(url)
    fetched = fetch(path, ledgers.home / "elsewhere")
    assert json.loads((fetched / "count.json").read_text()) == 2
    assert world.accounting() == []


def test_an_update_whose_weights_were_lost_since_is_not_committed(
    world: World, ledgers: LedgerFactory
) -> None:
    faulty_filesystem.register()
    stop, learner = threading.Event(), CountingLearner()
    ledger = _remote_ledger(ledgers, stop)
    at = ledger.resume(learner)
    FaultyFileSystem.faults[:] = [OSError("the object store is away")] * 1000
    stop.set()
    (group,) = ready_groups(world, 7)
    with pytest.raises(WeightsAway):
        commit(ledger, learner, at, TakenGroups([group]), Metrics({}))
    FaultyFileSystem.faults.clear()
    shutil.rmtree(ledgers.home / "cache")
    assert _remote_ledger(ledgers).resume(CountingLearner()).version == 0
    assert world.group(group.group_id).state == GroupState.READY
