"""From which snapshot a trainer that starts again goes on, and which updates it rolls back."""

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from ledgers import (
    SNAPSHOT_EVERY,
    CountingLearner,
    LedgerFactory,
    commit,
    ready_groups,
    saved_counts,
    step,
)
from run_transitions import World

from agentrl.core.errors import CheckpointError
from agentrl.core.trained_hash import ROOT, running_hash
from agentrl.core.types import RunState
from agentrl.db.transitions import runs
from agentrl.db.transitions.updates import LineageChanged, RunEnded, TrainerReplaced
from agentrl.trainer.batch import TakenGroups
from agentrl.trainer.engines.learner import Metrics


def test_each_start_of_a_trainer_begins_the_next_epoch(world: World) -> None:
    assert [world.begin_epoch(), world.begin_epoch()] == [1, 2]


def test_a_resume_continues_the_snapshot_and_rolls_back_later_updates(
    world: World, ledgers: LedgerFactory
) -> None:
    ledger, learner, at = ledgers.train(SNAPSHOT_EVERY + 1)
    fresh = CountingLearner()
    after = ledgers.open()
    again = after.resume(fresh)
    assert (again.version, fresh.count) == (SNAPSHOT_EVERY, SNAPSHOT_EVERY)
    assert saved_counts(world) == {1: 1, 2: 2}
    rolled_back = world.ask("SELECT position FROM groups WHERE state = 'rolled_back'")
    assert rolled_back == [(SNAPSHOT_EVERY,)]
    assert world.accounting() == []
    with pytest.raises(TrainerReplaced):
        step(world, ledger, learner, at, 7)
    at = step(world, after, fresh, again, 8)
    assert saved_counts(world) == {1: 1, 2: 2, 3: 3}
    assert world.accounting() == []


def test_a_trainer_rolls_back_nothing_of_a_run_that_was_stopped(
    world: World, ledgers: LedgerFactory
) -> None:
    """The version that it ended at stays: it can be served, evaluated and forked."""
    ledgers.train(SNAPSHOT_EVERY + 1)
    world.store.transact(
        lambda session: runs.move_run(session, world.run_id, RunState.STOPPED, "by command")
    )
    with pytest.raises(RunEnded):
        ledgers.open().resume(CountingLearner())
    assert (world.run().state, world.run().version) == (RunState.STOPPED, SNAPSHOT_EVERY + 1)
    assert saved_counts(world) == {1: 1, 2: 2, 3: 3}
    assert world.ask("SELECT DISTINCT state FROM groups") == [("trained",)]
    assert world.accounting() == []


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"stop_hours": 1.5}, "1.5 hours"),
        ({"stop_updates": SNAPSHOT_EVERY + 1}, f"{SNAPSHOT_EVERY + 1} updates"),
    ],
)
def test_a_trainer_ends_a_run_that_met_its_stop_rule_before_it_rolls_back(
    world: World, ledgers: LedgerFactory, rule: Mapping[str, Any], reason: str
) -> None:
    """It would undo the updates since the snapshot, and learn nothing in their place."""
    ledgers.train(SNAPSHOT_EVERY + 1)
    world.sql("UPDATE runs SET created_at = created_at - 7200")
    with pytest.raises(RunEnded):
        ledgers.open(**rule).resume(CountingLearner())
    run = world.run()
    assert (run.state, run.reason) == (RunState.COMPLETED, reason)
    assert run.version == SNAPSHOT_EVERY + 1
    assert saved_counts(world) == {1: 1, 2: 2, 3: 3}
    assert world.accounting() == []


def test_a_snapshot_at_the_end_makes_the_last_update_resumable(ledgers: LedgerFactory) -> None:
    ledger, learner, at = ledgers.train(1)
    ledger.snapshot(learner, at)
    ledger.snapshot(learner, at)
    fresh = CountingLearner()
    assert ledgers.open().resume(fresh) == at
    assert fresh.count == 1


def _damage_snapshot(world: World, version: int) -> None:
    ((path,),) = world.ask("SELECT snapshot_path FROM checkpoints WHERE version = :v", v=version)
    (Path(path) / "state.json").write_text("{}  ")


def test_a_trainer_resumes_from_the_snapshot_before_a_damaged_one(
    world: World, ledgers: LedgerFactory
) -> None:
    ledgers.train(2 * SNAPSHOT_EVERY)
    _damage_snapshot(world, 2 * SNAPSHOT_EVERY)
    fresh = CountingLearner()
    again = ledgers.open().resume(fresh)
    assert (again.version, fresh.count) == (SNAPSHOT_EVERY, SNAPSHOT_EVERY)
    assert world.run().version == SNAPSHOT_EVERY
    assert world.accounting() == []


def test_a_trainer_skips_a_snapshot_whose_trained_hash_differs_from_its_row(
    world: World, ledgers: LedgerFactory
) -> None:
    ledgers.train(2 * SNAPSHOT_EVERY)
    world.sql(
        "UPDATE checkpoints SET trained_hash = :h WHERE version = :v",
        h="0" * 64,
        v=2 * SNAPSHOT_EVERY,
    )
    assert ledgers.open().resume(CountingLearner()).version == SNAPSHOT_EVERY


def test_a_run_whose_snapshots_are_all_damaged_is_not_rolled_back(
    world: World, ledgers: LedgerFactory
) -> None:
    """Their folder may be missing only for now, so a person has to decide."""
    ledgers.train(2 * SNAPSHOT_EVERY)
    _damage_snapshot(world, SNAPSHOT_EVERY)
    _damage_snapshot(world, 2 * SNAPSHOT_EVERY)
    with pytest.raises(CheckpointError, match=r"no snapshot of the run can be used.*state\.json"):
        ledgers.open().resume(CountingLearner())
    assert world.run().version == 2 * SNAPSHOT_EVERY


def test_a_snapshot_that_no_row_names_is_found_on_the_disk(
    world: World, ledgers: LedgerFactory
) -> None:
    """As after a stop while the database was away."""
    ledger, learner, at = ledgers.train(SNAPSHOT_EVERY + 1)
    ledger.snapshot(learner, at)
    world.sql("UPDATE checkpoints SET snapshot_path = NULL WHERE version = :v", v=at.version)
    fresh = CountingLearner()
    assert ledgers.open().resume(fresh) == at
    assert fresh.count == at.version
    named = world.ask("SELECT version FROM checkpoints WHERE snapshot_path IS NOT NULL")
    assert (at.version,) in named


def test_a_trainer_learns_from_no_body_twice_after_the_database_lost_its_last_commit(
    world: World, ledgers: LedgerFactory
) -> None:
    """As after a failover to a replica that lagged: the weights are newer than the rows."""
    ledger, learner = ledgers.open(), CountingLearner()
    at = ledger.resume(learner)
    groups = ready_groups(world, *range(SNAPSHOT_EVERY + 1))
    for group in groups:
        learner.count += 1
        at = commit(ledger, learner, at, TakenGroups([group]), Metrics({}))
    lost, last = at.checkpoint_id, groups[-1]
    for table in ("update_groups", "updates"):
        world.sql(f"DELETE FROM {table} WHERE update_id = :u", u=f"{lost}.update")  # noqa: S608
    world.sql("DELETE FROM checkpoints WHERE checkpoint_id = :c", c=lost)
    world.sql("UPDATE runs SET version = version - 1")
    world.sql(
        "UPDATE groups SET state = 'ready', closed_at = NULL WHERE group_id = :g", g=last.group_id
    )
    with pytest.raises(LineageChanged):
        commit(ledger, learner, at, TakenGroups([last]), Metrics({}))
    fresh, after = CountingLearner(), ledgers.open()
    again = after.resume(fresh)
    assert (again.version, fresh.count) == (SNAPSHOT_EVERY, SNAPSHOT_EVERY)
    again = commit(after, fresh, again, TakenGroups([last]), Metrics({}))
    bodies = [[member.sha256 for member in group.members] for group in groups]
    assert again.trained_hash == reduce(running_hash, bodies, ROOT)
    assert world.accounting() == []
