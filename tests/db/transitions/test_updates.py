from dataclasses import replace
from functools import partial

import pytest
from run_transitions import World, run_concurrently
from sqlalchemy.orm import Session

from agentrl.core.errors import StoreError
from agentrl.core.trained_hash import running_hash
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import CheckpointState, GroupState, Reason
from agentrl.db.audit.trained_hashes import find_different_hashes
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints
from agentrl.db.transitions import episodes, item_streams, updates
from agentrl.db.transitions.updates import (
    LineageChanged,
    NewUpdate,
    RunEnded,
    TrainerReplaced,
    UpdateRefused,
)


def _update(world: World, version: int, epoch: int, bodies: list[Trajectory]) -> NewUpdate:
    return world.new_update(
        version,
        bodies,
        epoch,
        update_id=f"{world.run_id}-u{version}-{epoch}",
        checkpoint=_checkpoint(world, version, epoch),
        metrics={"loss": 0.5},
        started_at=1.0,
    )


def _checkpoint(world: World, version: int, epoch: int) -> Checkpoint:
    checkpoint = world.checkpoint(version)
    checkpoint.checkpoint_id = f"{world.run_id}-v{version}-{epoch}"
    return checkpoint


def _commit(world: World, version: int, epoch: int, bodies: list[Trajectory]) -> None:
    world.store.transact(
        lambda session: updates.commit_update(session, _update(world, version, epoch, bodies))
    )


def _roll_back(world: World, version: int, epoch: int) -> int:
    def work(session: Session) -> int:
        rows = checkpoints.live_checkpoints(session, world.run_id)
        (to,) = [row for row in rows if row.version == version]
        return updates.roll_back(session, world.run_id, to, epoch=epoch)

    return world.store.transact(work)


def test_ready_members_come_whole_and_the_oldest_group_first(world: World) -> None:
    first, second = world.ready(1), world.ready(0)
    world.admit(2)
    rows = world.store.ask(lambda s: updates.ready_members(s, world.run_id, limit=9))
    assert [row.episode_id for row in rows] == [body.episode_id for body in first + second]
    assert [row.sha256 for row in rows] == [body.sha256 for body in first + second]
    one = world.store.ask(lambda s: updates.ready_members(s, world.run_id, limit=1))
    assert {row.group_id for row in one} == {first[0].group_id}


def test_a_commit_writes_update_groups_hashes_and_checkpoint_together(world: World) -> None:
    bodies = world.ready(0) + world.ready(1)
    _commit(world, 1, world.begin_epoch(), bodies)
    assert world.run().version == 1
    assert {world.group(body.group_id).state for body in bodies} == {GroupState.TRAINED}
    assert sorted(world.ask("SELECT episode_id, fence, sha256 FROM update_groups")) == sorted(
        (body.episode_id, body.fence, body.sha256) for body in bodies
    )
    assert world.ask("SELECT groups, episodes, version FROM updates") == [(2, 8, 1)]
    assert world.accounting() == []


def test_a_commit_whose_answer_was_lost_may_be_repeated(world: World) -> None:
    epoch, bodies = world.begin_epoch(), world.ready(0)
    _commit(world, 1, epoch, bodies)
    _commit(world, 1, epoch, bodies)
    assert world.ask("SELECT COUNT(*) FROM updates") == [(1,)]
    assert world.accounting() == []


def test_a_replaced_trainer_commits_nothing(world: World) -> None:
    old, bodies = world.begin_epoch(), world.ready(0)
    world.begin_epoch()
    with pytest.raises(TrainerReplaced):
        _commit(world, 1, old, bodies)
    assert world.ask("SELECT COUNT(*) FROM updates") == [(0,)]
    assert world.group(bodies[0].group_id).state == GroupState.READY
    assert world.run().version == 0


def test_of_two_trainers_that_commit_at_once_only_the_newer_does(world: World) -> None:
    bodies, old = world.ready(0), world.begin_epoch()
    new = world.begin_epoch()

    def attempt(epoch: int) -> bool:
        try:
            _commit(world, 1, epoch, bodies)
        except TrainerReplaced:
            return False
        return True

    assert run_concurrently(lambda: attempt(old), lambda: attempt(new)) == [False, True]
    assert world.accounting() == []


def _learned(world: World, epoch: int) -> tuple[list[Trajectory], NewUpdate]:
    """A run at version 2; the bodies of its newest update, and an update from there."""
    bodies = []
    for version in (1, 2):
        bodies = world.ready(version)
        _commit(world, version, epoch, bodies)
    return bodies, _update(world, 3, epoch, world.ready(3))


def _lose_the_newest_commit(world: World, bodies: list[Trajectory]) -> None:
    """As a failover to a replica that lagged, or a restored backup, would."""
    group = bodies[0].group_id
    world.sql("UPDATE groups SET state = 'ready', closed_at = NULL WHERE group_id = :g", g=group)
    world.sql("DELETE FROM update_groups WHERE group_id = :g", g=group)
    world.sql("DELETE FROM updates WHERE version = 2")
    world.sql("DELETE FROM checkpoints WHERE version = 2")
    world.sql("UPDATE runs SET version = 1")


def _refused(world: World, new: NewUpdate, match: str) -> None:
    with pytest.raises(LineageChanged, match=match):
        world.store.transact(lambda session: updates.commit_update(session, new))
    assert world.group(new.members[0].group_id).state == GroupState.READY


def test_weights_with_an_update_that_the_database_lost_commit_nothing(world: World) -> None:
    epoch = world.begin_epoch()
    bodies, new = _learned(world, epoch)
    _lose_the_newest_commit(world, bodies)
    _refused(world, new, f"at version 1 in the database, and the parent {world.run_id}-v2-1 is unk")
    begun = world.begin_epoch()  # the trainer begins again from what the database knows
    assert _roll_back(world, 1, begun) == 0
    _commit(world, 2, begun, bodies)
    _commit(world, 3, begun, world.ready(4))
    assert world.accounting() == []
    assert world.ask("SELECT version FROM updates ORDER BY version") == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("planted", "match"),
    [
        ("UPDATE runs SET version = 1", "at version 1 in the database"),
        ("UPDATE runs SET version = 3", "at version 3 in the database"),
        (
            "UPDATE checkpoints SET state = 'rolled_back' WHERE version = 2",
            "rolled_back at version",
        ),
        ("UPDATE checkpoints SET version = 5 WHERE version = 2", "live at version 5"),
        ("UPDATE runs SET trainer_epoch = 0", "the database has lost commits"),
    ],
)
def test_an_update_grows_from_the_newest_live_checkpoint_alone(
    world: World, planted: str, match: str
) -> None:
    _, new = _learned(world, world.begin_epoch())
    world.sql(planted)
    _refused(world, new, match)


def test_each_checkpoint_carries_the_running_hash_of_its_bodies(world: World) -> None:
    epoch = world.begin_epoch()
    bodies, new = _learned(world, epoch)
    query = "SELECT trained_hash FROM checkpoints ORDER BY version"
    (root,), (first,), (second,) = world.ask(query)
    assert root is None
    assert second == running_hash(first, [body.sha256 for body in bodies])
    with world.store.read() as session:
        assert list(find_different_hashes(session, world.run_id)) == []
    new.checkpoint.trained_hash = running_hash(first, [body.sha256 for body in bodies])
    _refused(world, new, "trained on other trajectories than version 2")
    world.sql("UPDATE update_groups SET sha256 = 'x' WHERE episode_id = :e", e=bodies[0].episode_id)
    with world.store.read() as session:
        (wrong,) = find_different_hashes(session, world.run_id)
    assert "to version 2" in wrong
    world.sql("DELETE FROM update_groups WHERE episode_id = :e", e=bodies[0].episode_id)  # pruned
    with world.store.read() as session:
        assert list(find_different_hashes(session, world.run_id)) == []


def test_a_group_is_trained_once(world: World) -> None:
    epoch, bodies = world.begin_epoch(), world.ready(0)
    _commit(world, 1, epoch, bodies)
    with pytest.raises(UpdateRefused, match="1 groups are not ready"):
        _commit(world, 2, epoch, bodies + world.ready(1))
    assert world.run().version == 1
    assert world.accounting() == []


def test_a_member_issued_again_meanwhile_is_not_trained_as_it_was(world: World) -> None:
    epoch, bodies = world.begin_epoch(), world.ready(0)
    row = world.episode(bodies[0].episode_id)
    lost = episodes.ClaimedEpisode.of(row)
    assert world.store.transact(lambda s: episodes.lose_body(s, lost, max_attempts=3))
    (again,) = world.claimed(row.group_id)
    body = world.body(again, 0.5)
    assert world.finish(again, body)
    with pytest.raises(UpdateRefused, match="trajectory of an episode has been replaced"):
        _commit(world, 1, epoch, bodies)
    world.keep([body])
    _commit(world, 1, epoch, [body, *bodies[1:]])
    assert world.accounting() == []


def test_a_member_left_out_is_refused(world: World) -> None:
    epoch, bodies = world.begin_epoch(), world.ready(0)
    with pytest.raises(UpdateRefused):
        _commit(world, 1, epoch, bodies[1:])


def test_an_update_after_the_end_of_the_run_is_refused(world: World) -> None:
    epoch, bodies = world.begin_epoch(), world.ready(0)
    world.sql("UPDATE runs SET state = 'stopped'")
    with pytest.raises(RunEnded):
        _commit(world, 1, epoch, bodies)
    assert issubclass(RunEnded, StoreError)


def test_a_roll_back_takes_later_updates_and_their_groups_off_the_lineage(world: World) -> None:
    epoch = world.begin_epoch()
    batches = [world.ready(position) for position in range(3)]
    for version, bodies in enumerate(batches, 1):
        _commit(world, version, epoch, bodies)
    newer = world.begin_epoch()
    assert _roll_back(world, 1, newer) == 2
    assert _roll_back(world, 1, newer) == 0
    states = [world.group(bodies[0].group_id).state for bodies in batches]
    assert states == [GroupState.TRAINED, GroupState.ROLLED_BACK, GroupState.ROLLED_BACK]
    live = world.store.ask(
        lambda s: [c.version for c in checkpoints.live_checkpoints(s, world.run_id)]
    )
    assert (live, world.run().version) == ([0, 1], 1)
    assert world.ask("SELECT COUNT(*) FROM checkpoints WHERE state = :s", s=_ROLLED) == [(2,)]
    assert world.accounting() == []
    _commit(world, 2, newer, world.ready(7))
    assert world.accounting() == []


def test_groups_left_out_of_an_update_share_its_fate(world: World) -> None:
    epoch = world.begin_epoch()
    batches = [[world.ready(2 * n), world.ready(2 * n + 1)] for n in range(3)]
    names = [left_out[0].group_id for _, left_out in batches]
    world.ready(8)
    world.sql("UPDATE groups SET state = 'filtered', reason = 'zero_spread' WHERE position = 8")
    for version, (trained, left_out) in enumerate(batches, 1):
        new = replace(_update(world, version, epoch, trained), left_out=[left_out[0].group_id])
        if version == 3:
            world.sql("UPDATE runs SET state = 'stopped'")
            with pytest.raises(RunEnded):
                world.store.transact(partial(updates.commit_update, new=new))
            world.sql("UPDATE runs SET state = 'running'")
            break
        world.store.transact(partial(updates.commit_update, new=new))
        group = world.group(left_out[0].group_id)
        assert (group.state, group.reason) == (GroupState.FILTERED, Reason.LOW_SPREAD)
    assert _roll_back(world, 1, world.begin_epoch()) == 1
    assert [world.group(name).state for name in names] == [
        GroupState.FILTERED, GroupState.ROLLED_BACK, GroupState.READY
    ]  # fmt: skip
    with world.store.read() as session:
        places = item_streams.positions_to_repeat(session, world.run_id)
    assert [place.position for place in places] == [2, 3]
    assert world.ask("SELECT state FROM groups WHERE position = 8") == [("filtered",)]
    assert world.accounting() == []


def test_a_line_that_was_left_names_where_it_left_the_live_one(world: World) -> None:
    epoch = world.begin_epoch()

    def grown(version: int, of: int, parent_of: int) -> None:
        _commit(world, version, of, world.ready(10 * of + version))
        world.sql(
            "UPDATE checkpoints SET parent_id = :p WHERE checkpoint_id = :c",
            p=f"{world.run_id}-v{version - 1}-{parent_of}",
            c=f"{world.run_id}-v{version}-{of}",
        )

    for version in (1, 2, 3):
        grown(version, epoch, epoch)
    assert world.store.ask(lambda session: updates.forks(session, world.run_id)) == {}
    newer = world.begin_epoch()
    _roll_back(world, 1, newer)
    grown(2, newer, epoch)
    left = {f"{world.run_id}-v{version}-{epoch}": 1 for version in (2, 3)}
    assert world.store.ask(lambda session: updates.forks(session, world.run_id)) == left
    _roll_back(world, 0, world.begin_epoch())
    found = world.store.ask(lambda session: updates.forks(session, world.run_id))
    assert set(found.values()) == {0}, "the line that they left was left in its turn"
    assert len(found) == 4


_ROLLED = CheckpointState.ROLLED_BACK.value


def test_a_trainer_that_was_replaced_rolls_nothing_back(world: World) -> None:
    slow = world.begin_epoch()
    epoch = world.begin_epoch()
    _commit(world, 1, epoch, world.ready(0))
    with pytest.raises(TrainerReplaced):
        _roll_back(world, 0, slow)
    assert world.run().version == 1
    assert world.ask("SELECT DISTINCT state FROM groups") == [("trained",)]
