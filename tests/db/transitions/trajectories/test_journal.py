from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_transitions import World
from steps_kept import append, kept, new_step

from agentrl.core.types import GroupState, Reason, RunState, Status
from agentrl.db.admin import retention
from agentrl.db.transitions import episodes, groups, lifecycle, runs
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.db.transitions.trajectories import journal
from agentrl.db.transitions.trajectories.journal import FormerStep, chain

MANY = 3


@pytest.fixture
def claimed(world: World) -> ClaimedEpisode:
    return world.claimed(world.admit(0)[0])[0]


def _retry(world: World, claimed: ClaimedEpisode, reason: Reason) -> None:
    assert world.store.transact(
        lambda s: episodes.retry(s, claimed, reason, max_attempts=MANY, detail=Status.LOST)
    )


def _again(world: World, claimed: ClaimedEpisode) -> ClaimedEpisode:
    found = world.claim(claimed.episode_id, claimed.fence + 1)
    assert found is not None
    return found


def _former(world: World, claimed: ClaimedEpisode) -> list[bytes] | None:
    found = world.store.ask(lambda s: journal.former_steps(s, claimed.episode_id, claimed.fence))
    return None if found is None else [step.body for step in found]


def _prune(world: World) -> int:
    return world.store.transact(lambda s: journal.prune(s, world.run_id))


def test_steps_that_are_stored_twice_are_kept_once(world: World, claimed: ClaimedEpisode) -> None:
    steps = [new_step(world, claimed, number) for number in range(3)]
    assert append(world, *steps) == set()
    assert append(world, *steps) == set()
    assert kept(world) == [(1, 0), (1, 1), (1, 2)]


def test_only_the_attempt_that_owns_the_episode_stores_steps(
    world: World, claimed: ClaimedEpisode
) -> None:
    """Another one of the same transaction is not affected."""
    other = world.claimed(world.admit(1)[0])[0]
    _retry(world, claimed, Reason.LOST)
    now = _again(world, claimed)
    forgotten = replace(now, started_at=(now.started_at or 0.0) - 1.0)
    late = [new_step(world, each, 0) for each in (claimed, forgotten)]
    refused = append(world, *late, new_step(world, other, 0))
    assert refused == {(claimed.episode_id, 1), (claimed.episode_id, 2)}
    assert kept(world, claimed.episode_id) == []
    assert kept(world, other.episode_id) == [(1, 0)]


def test_the_next_attempt_finds_what_was_stored_before_the_worker_was_lost(
    world: World, claimed: ClaimedEpisode
) -> None:
    append(world, *(new_step(world, claimed, number) for number in range(2)))
    _retry(world, claimed, Reason.LOST)
    second = _again(world, claimed)
    assert _former(world, second) == [b"1/0", b"1/1"]
    append(world, new_step(world, second, 2, parent_fence=1), new_step(world, second, 3))
    assert world.store.transact(lambda s: episodes.release(s, second))
    third = _again(world, second)
    assert _former(world, third) == [b"1/0", b"1/1", b"2/2", b"2/3"]


def test_an_attempt_that_starts_anew_leaves_only_its_own_steps(
    world: World, claimed: ClaimedEpisode
) -> None:
    append(world, *(new_step(world, claimed, number) for number in range(2)))
    _retry(world, claimed, Reason.LOST)
    second = _again(world, claimed)

    def forget(by: ClaimedEpisode) -> None:
        world.store.transact(
            lambda s: journal.forget_former(
                s, by.episode_id, by.fence, by.started_at, why="diverged"
            )
        )

    forget(replace(second, started_at=1.0))  # an attempt that the database forgot
    assert kept(world) == [(1, 0), (1, 1)]
    append(world, new_step(world, second, 0))
    for _ in range(2):  # a commit whose answer was lost is repeated
        forget(second)
    assert kept(world) == [(2, 0)]
    query = "SELECT transition, found, number FROM refused_transitions"
    assert world.ask(query) == [("continue", "diverged", 1)]


@pytest.mark.parametrize("reason", [Reason.ENV_ERROR, Reason.TIMEOUT, Reason.PUBLISH_FAILED])
def test_an_attempt_that_failed_by_itself_leaves_nothing_to_continue(
    world: World, claimed: ClaimedEpisode, reason: Reason
) -> None:
    append(world, new_step(world, claimed, 0))
    _retry(world, claimed, reason)
    assert kept(world) == []


def test_a_member_that_fails_for_good_keeps_no_steps(world: World) -> None:
    claimed = world.claimed(world.admit(0)[0])[0]
    for _ in range(MANY - 1):
        append(world, new_step(world, claimed, 0))
        _retry(world, claimed, Reason.LOST)
        claimed = _again(world, claimed)
    assert len(kept(world)) == MANY - 1
    _retry(world, claimed, Reason.LOST)
    assert kept(world) == []


def test_steps_leave_with_the_body_of_their_finished_episode(world: World) -> None:
    first, second, *_ = world.claimed(world.admit(0)[0])
    append(world, new_step(world, first, 0), new_step(world, second, 0))
    body = world.body(first)
    world.keep([body])  # before the row says finished: its worker may still die
    assert kept(world, first.episode_id) == [(1, 0)]
    assert world.finish(first, body)
    assert _prune(world) == 1
    body = world.body(second)
    assert world.finish(second, body)
    assert _prune(world) == 0  # the body may be lost on its way
    world.keep([body])
    assert kept(world) == []
    assert world.accounting() == []


def test_a_late_body_of_a_former_attempt_does_not_take_the_steps_of_its_successor(
    world: World, claimed: ClaimedEpisode
) -> None:
    append(world, new_step(world, claimed, 0))
    body = world.body(claimed)
    _retry(world, claimed, Reason.LOST)
    second = _again(world, claimed)
    append(world, new_step(world, second, 1, parent_fence=1))
    world.keep([body])
    assert kept(world) == [(1, 0), (2, 1)]


def test_an_episode_whose_body_was_lost_is_repeated_from_its_steps(
    world: World, claimed: ClaimedEpisode
) -> None:
    append(world, new_step(world, claimed, 0))
    assert world.finish(claimed, world.body(claimed))
    assert world.store.transact(lambda s: episodes.lose_body(s, claimed, max_attempts=MANY))
    assert _former(world, _again(world, claimed)) == [b"1/0"]


def test_a_damaged_body_is_not_made_again_from_the_same_steps(
    world: World, claimed: ClaimedEpisode
) -> None:
    append(world, new_step(world, claimed, 0))
    assert world.finish(claimed, world.body(claimed))
    lost = Reason.BODY_DAMAGED
    assert world.store.transact(
        lambda s: episodes.lose_body(s, claimed, max_attempts=MANY, reason=lost)
    )
    assert kept(world) == []


def test_the_end_of_a_run_and_its_deletion_leave_no_steps(
    world: World, claimed: ClaimedEpisode
) -> None:
    append(world, new_step(world, claimed, 0))
    world.store.transact(lambda s: runs.move_run(s, world.run_id, RunState.STOPPED))
    assert kept(world) == []
    planted = "INSERT INTO journal SELECT episode_id, 1, 0, NULL, 1, run_id, '', 0 FROM episodes"
    world.sql(planted)
    assert list(retention.forget_groups(world.store, world.run_id)) == [4]
    assert kept(world) == []
    other = World.begin(world.store, "other")
    append(other, new_step(other, other.claimed(other.admit(0)[0])[0], 0))
    with world.store.write() as session:
        lifecycle.delete_run_rows(session, other.run_id)
    assert kept(world) == []


def test_pruning_keeps_what_an_attempt_may_continue_and_nothing_else(world: World) -> None:
    running, queued, ended, closed = world.claimed(world.admit(0)[0])
    append(world, *(new_step(world, each, 0) for each in (running, queued, ended, closed)))
    _retry(world, queued, Reason.LOST)
    world.sql("UPDATE episodes SET state = 'cancelled' WHERE episode_id = :e", e=ended.episode_id)
    assert world.finish(closed, world.body(closed))
    assert _prune(world) == 1
    world.store.transact(
        lambda s: groups.close_groups(s, [closed.group_id], GroupState.STALE, Reason.TOO_STALE)
    )
    world.sql("UPDATE groups SET state = 'stale'")
    assert _prune(world) == 1
    assert {e for (e,) in world.ask("SELECT episode_id FROM journal")} == {
        running.episode_id,
        queued.episode_id,
    }


@given(
    lengths=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=5),
    late=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 8)), max_size=4),
    gone=st.none() | st.integers(0, 20),
)
def test_the_chain_is_what_the_last_attempt_held_whatever_stragglers_commit(
    lengths: list[tuple[int, int]], late: list[tuple[int, int]], gone: int | None
) -> None:
    """Each attempt continues some steps of the one before and adds its own; 0 begins anew."""
    held: list[FormerStep] = []
    rows: dict[tuple[int, int], FormerStep] = {}
    for fence, (continued, added) in enumerate(lengths, 1):
        held = held if continued else []
        for _ in range(added):
            parent = held[-1].fence if held else None
            step = FormerStep(fence, len(held), parent, 1, f"{fence}/{len(held)}".encode())
            held = [*held, step]
            rows[fence, step.number] = step
    newest = max((fence for fence, _ in rows), default=0)
    expected = [step for step in held] if held and held[-1].fence == newest else None
    for fence, number in late:  # committed after the episode had moved on
        if fence < newest:
            rows.setdefault((fence, number), FormerStep(fence, number, fence, 1, b"late"))
    found = chain([rows[key] for key in sorted(rows)])
    if expected is not None:
        assert found == expected
        if gone is not None and len(expected) > 1:
            del rows[(lost := expected[gone % (len(expected) - 1)]).fence, lost.number]
            assert chain([rows[key] for key in sorted(rows)]) is None
