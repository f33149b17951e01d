import msgspec
import pytest
from run_transitions import World

from agentrl.broker.messages import EpisodeFinished, encode
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import EpisodeState, GroupState, Reason
from agentrl.db.transitions import groups, lifecycle
from agentrl.db.transitions.trajectories import bodies
from agentrl.db.transitions.trajectories.bodies import UnstorableBody

MANY = 3


def test_bodies_come_back_as_they_travelled(world: World) -> None:
    kept = world.ready(0)
    keys = [(body.episode_id, body.fence) for body in kept]
    found = world.store.ask(lambda s: bodies.read_bodies(s, [*keys, ("nobody", 1)] * 60))
    assert found == {
        key: encode(EpisodeFinished(trajectory=body)) for key, body in zip(keys, kept, strict=True)
    }


def test_what_comes_twice_is_kept_once_and_as_it_first_came(world: World) -> None:
    first = world.ready(0)
    world.keep(first)
    world.keep([*first, *world.ready(1, stored=False)])
    assert world.ask("SELECT COUNT(*) FROM trajectories") == [(8,)]
    assert world.ask("SELECT COUNT(*) FROM steps") == [(16,)]
    assert world.accounting() == []


def test_a_row_that_does_not_fit_is_an_error_and_keeps_nothing(world: World) -> None:
    (first, second, *_) = world.members(world.admit(0)[0])
    world.sql("UPDATE episodes SET started_at = 1")
    row = {"fence": 1, "run_id": world.run_id, "sha256": "s", "body": b"b", "started_at": 1.0}
    rows = [
        row | {"episode_id": first.episode_id, "received_at": 0.0},
        row | {"episode_id": second.episode_id, "received_at": None},
    ]
    with pytest.raises(UnstorableBody, match="received_at"), world.store.write() as session:
        bodies.store_bodies(session, rows, [])
    assert world.ask("SELECT COUNT(*) FROM trajectories") == [(0,)]


def test_a_body_of_a_deleted_run_or_of_an_unknown_attempt_is_passed_over(world: World) -> None:
    kept, later, orphan = world.ready(0, (0.0, 1.0, 0.0), stored=False)
    world.keep([kept, msgspec.structs.replace(later, fence=later.fence + 1)])
    assert world.ask("SELECT episode_id FROM trajectories") == [(kept.episode_id,)]
    assert world.ask("SELECT COUNT(*) FROM steps") == [(len(kept.steps),)]
    with world.store.write() as session:
        lifecycle.delete_run_rows(session, world.run_id)
    world.keep([orphan])
    assert world.ask("SELECT COUNT(*) FROM trajectories") == [(0,)]
    assert world.ask("SELECT COUNT(*) FROM steps") == [(0,)]
    assert world.accounting() == []


def test_an_attempt_that_the_database_forgot_never_stands_for_the_one_that_follows_it(
    world: World,
) -> None:
    """A database that lost its newest commits issues the same fence again."""
    (first, *_) = world.claimed(world.admit(0)[0])
    before = world.body(first, 0.0)
    world.sql(
        "UPDATE episodes SET state = 'queued', worker_id = NULL, started_at = NULL,"
        " attempts = attempts - 1 WHERE episode_id = :e",
        e=first.episode_id,
    )
    world.keep([before])  # of an attempt that nobody has claimed
    again = world.claim(first.episode_id, first.fence)
    assert again is not None
    assert (again.fence, again.attempt) == (first.fence, first.attempt)
    world.keep([before])
    assert not world.finish(first, before)
    after = world.body(again, 1.0)
    assert world.finish(again, after)
    world.keep([before, after])
    stored = "SELECT sha256 FROM trajectories WHERE episode_id = :e"
    assert world.ask(stored, e=first.episode_id) == [(after.sha256,)]
    assert world.accounting() == []


def _give_up(world: World, body: Trajectory) -> bool:
    return world.store.transact(
        lambda s: bodies.give_up_body(s, body.episode_id, body.fence, max_attempts=MANY)
    )


def test_a_body_damaged_again_and_again_fails_its_member(world: World) -> None:
    body = world.ready(0)[0]
    for fence in range(2, MANY + 1):
        assert _give_up(world, body)
        assert not _give_up(world, body)
        (claimed,) = world.claimed(body.group_id)
        assert (claimed.fence, claimed.attempt) == (fence, fence)
        body = world.body(claimed, 0.0)
        assert world.finish(claimed, body)
        world.keep([body])
    assert _give_up(world, body)
    row, group = world.episode(body.episode_id), world.group(body.group_id)
    assert (row.state, row.reason, row.reward) == (EpisodeState.FAILED, Reason.BODY_DAMAGED, None)
    assert (group.state, group.pending) == (GroupState.READY, 0)
    assert (
        world.ask("SELECT fence FROM trajectories WHERE episode_id = :e", e=body.episode_id) == []
    )
    assert world.accounting() == []


def test_a_body_that_was_trained_is_never_given_up(world: World) -> None:
    body = world.ready(0)[0]
    world.store.transact(
        lambda s: groups.close_groups(s, [body.group_id], GroupState.FILTERED, Reason.ZERO_SPREAD)
    )
    assert not _give_up(world, body)
    assert not _give_up(world, msgspec.structs.replace(body, episode_id="nobody"))
    assert world.ask("SELECT COUNT(*) FROM trajectories") == [(4,)]
