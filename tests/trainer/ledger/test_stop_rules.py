"""When a run ends: after so many updates or hours, or at a rate of success."""

import pytest
from ledgers import CountingLearner, LedgerFactory, step
from run_transitions import World

from agentrl.core.config.config import Config
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.types import RunState
from agentrl.db.queries import progress
from agentrl.db.queries.progress import RECENT_UPDATES
from agentrl.db.transitions.updates import TrainerReplaced
from agentrl.trainer.checkpoint_writer import Position


def test_a_run_ends_when_its_trainer_meets_a_stop_rule(
    world: World, ledgers: LedgerFactory
) -> None:
    at = Position(3, "c")
    assert not ledgers.open().end_if_due(at)
    assert not ledgers.open(stop_updates=4).end_if_due(at)
    assert not ledgers.open(stop_hours=1.0).end_if_due(at)
    assert not ledgers.open(stop_success=0.5).end_if_due(at)
    assert world.run().state == RunState.RUNNING
    replaced = ledgers.open(stop_updates=3)
    replaced.epoch = -1
    with pytest.raises(TrainerReplaced):
        replaced.end_if_due(at)
    assert world.run().state == RunState.RUNNING
    assert ledgers.open(stop_updates=3).end_if_due(at)
    assert (world.run().state, world.run().reason) == (RunState.COMPLETED, "3 updates")


def test_a_run_ends_by_success_from_the_tenth_update_on(
    world: World, ledgers: LedgerFactory
) -> None:
    ledger, learner = ledgers.open(stop_success=0.5), CountingLearner()
    at = ledger.resume(learner)
    step(world, ledger, learner, at, 0)
    assert not ledger.end_if_due(Position(9, "c"))
    assert ledger.end_if_due(Position(10, "c"))
    assert world.run().reason == "success 0.5"


def test_success_waits_for_every_task_of_the_configuration(
    world: World, ledgers: LedgerFactory
) -> None:
    tasks = {"dbbench": Task(), "alfworld": Task()}
    ledger = ledgers.open(Config(tasks=tasks, run=Run(stop_success=0.5)))
    learner = CountingLearner()
    step(world, ledger, learner, ledger.resume(learner), 0)
    assert not ledger.end_if_due(Position(10, "c"))


def test_success_is_that_of_the_worst_task(world: World, ledgers: LedgerFactory) -> None:
    tasks = {"dbbench": Task(), "alfworld": Task()}
    ledger = ledgers.open(Config(tasks=tasks, run=Run(stop_success=0.5)))
    learner = CountingLearner()
    at = step(world, ledger, learner, ledger.resume(learner), 0)
    step(world, ledger, learner, at, 1)
    world.sql("UPDATE groups SET task = 'alfworld' WHERE position = 1")
    world.sql("UPDATE episodes SET task = 'alfworld' WHERE group_id LIKE '%-dbbench-1'")
    world.sql("UPDATE episodes SET score = 1 WHERE task = 'dbbench'")
    world.sql("UPDATE episodes SET score = 0 WHERE task = 'alfworld' AND member > 0")
    world.sql("UPDATE episodes SET score = 1 WHERE task = 'alfworld' AND member = 0")
    assert not ledger.end_if_due(Position(10, "c"))
    world.sql("UPDATE episodes SET score = 1 WHERE task = 'alfworld'")
    assert ledger.end_if_due(Position(10, "c"))


def test_a_task_without_new_groups_counts_by_its_last_ones(
    world: World, ledgers: LedgerFactory
) -> None:
    """As when `dispatch.retire_at` has retired all its items."""
    tasks = {"dbbench": Task(), "alfworld": Task()}
    ledger = ledgers.open(Config(tasks=tasks, run=Run(stop_success=0.5)))
    learner = CountingLearner()
    at = ledger.resume(learner)
    at = step(world, ledger, learner, at, 0)
    world.sql("UPDATE groups SET task = 'alfworld'")
    world.sql("UPDATE episodes SET task = 'alfworld', score = 1")
    for position in range(1, RECENT_UPDATES + 1):
        at = step(world, ledger, learner, at, position)
    with world.store.read() as session:
        assert set(progress.recent_success(session, world.run_id)) == {"dbbench"}
    world.sql("UPDATE episodes SET score = 0 WHERE task = 'alfworld' AND member > 0")
    assert not ledger.end_if_due(at)
    world.sql("UPDATE episodes SET score = 1 WHERE task = 'alfworld'")
    assert ledger.end_if_due(at)


def test_hours_count_from_the_creation_of_the_run(world: World, ledgers: LedgerFactory) -> None:
    world.sql("UPDATE runs SET created_at = created_at - 7200")
    assert ledgers.open(stop_hours=1.5).end_if_due(Position(0, "c"))
