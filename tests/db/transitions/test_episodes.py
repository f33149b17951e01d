import dataclasses
from functools import partial
from typing import Any

import pytest
from run_transitions import SIZE, World, run_concurrently
from sqlalchemy import event

from agentrl.core.types import EpisodeState, GroupState, Reason, RunState, Status
from agentrl.db.models.runs import Run
from agentrl.db.transitions import due_episodes, episodes, groups, runs
from agentrl.db.transitions.episodes import ClaimedEpisode

MANY = 3


def _retry(world: World, claimed: ClaimedEpisode, reason: Reason = Reason.ENV_ERROR) -> bool:
    return world.store.transact(
        lambda session: episodes.retry(
            session, claimed, reason, max_attempts=MANY, detail=Status.ENV_ERROR
        )
    )


def _lose(world: World, claimed: ClaimedEpisode) -> bool:
    return world.store.transact(
        lambda session: episodes.lose_body(session, claimed, max_attempts=MANY)
    )


def _exhaust(world: World, claimed: ClaimedEpisode) -> None:
    """Fail the attempt and all that follow."""
    for _ in range(MANY):
        assert _retry(world, claimed)
        again = world.claim(claimed.episode_id, claimed.fence + 1)
        claimed = again or claimed


def test_due_rows_are_sent_once_and_again_after_the_time_to_claim(world: World) -> None:
    world.admit(0)

    def due(timeout_s: float) -> list[tuple[str, int]]:
        return world.store.transact(
            lambda s: due_episodes.due_to_send(s, world.run_id, claim_timeout_s=timeout_s)
        )

    first = due(0.0)
    assert len(first) == SIZE
    assert sorted(due(60.0)) == sorted(first)
    assert due(60.0) == []


def test_a_claim_is_one_statement_and_a_finish_three(world: World) -> None:
    (group_id,) = world.admit(0)
    asked: list[str] = []

    def tell(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        asked.append(statement.split(maxsplit=1)[0])

    event.listen(world.store.engine, "before_cursor_execute", tell)
    claimed = world.claim(f"{group_id}-0")
    assert claimed is not None
    claim, body = [each for each in asked if each != "BEGIN"], world.body(claimed)
    asked.clear()
    assert world.finish(claimed, body)
    assert claim == ["UPDATE"]
    assert [each for each in asked if each != "BEGIN"] == ["SELECT", "UPDATE", "UPDATE"]


def test_a_claim_counts_the_attempt_and_wins_once(world: World) -> None:
    (group_id,) = world.admit(0)
    claimed = world.claim(f"{group_id}-0")
    assert claimed is not None
    assert (claimed.attempt, claimed.fence, claimed.group_id) == (1, 1, group_id)
    assert world.claim(f"{group_id}-0") is None
    assert world.claim(f"{group_id}-1", fence=2) is None
    assert world.claim("no such episode") is None
    assert world.episode(f"{group_id}-1").state == EpisodeState.QUEUED


def test_of_many_claims_at_once_one_wins(world: World) -> None:
    (group_id,) = world.admit(0)
    for member in range(SIZE):
        won = run_concurrently(*[lambda m=member: world.claim(f"{group_id}-{m}")] * 4)
        assert sum(claimed is not None for claimed in won) == 1


@pytest.mark.parametrize("state", [RunState.PAUSED, RunState.STOPPED])
def test_a_run_that_is_paused_or_over_is_claimed_by_nobody(world: World, state: RunState) -> None:
    (group_id,) = world.admit(0)
    world.store.transact(lambda session: runs.move_run(session, world.run_id, state))
    assert world.claim(f"{group_id}-0") is None


def test_finishes_at_once_settle_the_group_exactly_once(world: World) -> None:
    for position in range(4):
        (group_id,) = world.admit(position)
        claims = world.claimed(group_id)
        works = [lambda c=c: world.finish(c, world.body(c, 1.0)) for c in claims]
        assert run_concurrently(*works) == [True] * SIZE
        group = world.group(group_id)
        assert (group.state, group.pending) == (GroupState.READY, 0)
        assert group.ready_at is not None
    assert world.accounting() == []


def test_a_finish_applies_once_and_only_to_its_own_attempt(world: World) -> None:
    (group_id,) = world.admit(0)
    claimed = world.claimed(group_id)[0]
    body = world.body(claimed, 1.0)
    stale = dataclasses.replace(claimed, fence=claimed.fence + 1)
    assert not world.finish(stale, body)
    assert world.finish(claimed, body)
    assert not world.finish(claimed, body)
    row = world.episode(claimed.episode_id)
    assert (row.state, row.reward, row.status) == (EpisodeState.FINISHED, 1.0, Status.COMPLETED)
    assert world.group(group_id).pending == SIZE - 1
    assert not _retry(world, claimed)
    assert not world.store.transact(lambda session: episodes.release(session, claimed))


def test_retries_are_bounded_and_then_name_their_reason(world: World) -> None:
    (group_id,) = world.admit(0)
    claimed = world.claimed(group_id)[0]
    _exhaust(world, claimed)
    row = world.episode(claimed.episode_id)
    assert (row.state, row.reason, row.attempts) == (EpisodeState.FAILED, Reason.ENV_ERROR, MANY)
    assert (row.status, row.reward) == (Status.ENV_ERROR, None)
    assert world.group(group_id).pending == SIZE - 1


@pytest.mark.parametrize(
    ("survivors", "state"), [(2, GroupState.READY), (1, GroupState.FAILED), (0, GroupState.FAILED)]
)
def test_a_group_needs_two_survivors(world: World, survivors: int, state: GroupState) -> None:
    (group_id,) = world.admit(0)
    for claimed in world.claimed(group_id):
        if claimed.member < survivors:
            world.finish(claimed, world.body(claimed))
        else:
            _exhaust(world, claimed)
    group = world.group(group_id)
    assert (group.state, group.pending) == (state, 0)
    if state == GroupState.FAILED:
        assert group.reason == Reason.TOO_FEW_SURVIVORS
        assert group.closed_at is not None


def test_a_release_does_not_count(world: World) -> None:
    (group_id,) = world.admit(0)
    for fence in range(1, MANY + 3):
        claimed = world.claim(f"{group_id}-0", fence)
        assert claimed is not None
        assert claimed.attempt == 1
        assert world.store.transact(lambda session, c=claimed: episodes.release(session, c))  # type: ignore[misc]
    assert world.group(group_id).pending == SIZE


def test_attempts_expire_by_lease_and_by_deadline(world: World) -> None:
    (group_id,) = world.admit(0)
    timed = world.claim(f"{group_id}-0", deadline_s=-1.0)

    def expired() -> dict[str, Reason]:
        rows = world.store.ask(lambda session: due_episodes.expired_attempts(session, world.run_id))
        return {claimed.episode_id: reason for claimed, reason in rows}

    assert timed is not None
    assert world.claim(f"{group_id}-1") is not None
    assert expired() == {timed.episode_id: Reason.TIMEOUT}
    world.sql("UPDATE workers SET lease_until = 0")
    assert expired() == dict.fromkeys((f"{group_id}-0", f"{group_id}-1"), Reason.LOST)
    world.store.transact(lambda s: runs.beat_worker(s, world.worker_id, lease_s=60.0))
    assert expired() == {timed.episode_id: Reason.TIMEOUT}
    world.store.transact(lambda session: runs.end_worker(session, world.worker_id))
    assert len(expired()) == 2
    assert world.store.transact(lambda s: runs.beat_worker(s, world.worker_id, lease_s=9)) is None


def test_a_worker_that_was_given_up_cannot_finish(world: World) -> None:
    (group_id,) = world.admit(0)
    claimed = world.claimed(group_id)[0]
    assert _retry(world, claimed, Reason.LOST)
    assert not world.finish(claimed, world.body(claimed))
    assert world.episode(claimed.episode_id).fence == 2


def test_a_finish_and_a_retry_at_once_leave_one_of_them(world: World) -> None:
    for position in range(4):
        (group_id,) = world.admit(position)
        for claimed in world.claimed(group_id):
            body = world.body(claimed)
            both = run_concurrently(
                partial(world.finish, claimed, body), partial(_retry, world, claimed)
            )
            assert sum(both) == 1
    assert world.accounting() == []


def test_a_lost_body_is_issued_again_and_opens_its_group(world: World) -> None:
    (group_id,) = world.admit(0)
    claims = world.claimed(group_id)
    bodies = [world.body(claimed, 1.0) for claimed in claims]
    for claimed, body in zip(claims, bodies, strict=True):
        world.finish(claimed, body, body_timeout_s=-1.0)
    world.keep(bodies[1:])
    world.caught_up()
    lost = world.store.ask(lambda session: due_episodes.bodies_overdue(session, world.run_id))
    assert lost == [claims[0]]
    assert _lose(world, lost[0])
    assert not _lose(world, lost[0])
    group, row = world.group(group_id), world.episode(lost[0].episode_id)
    assert (group.state, group.pending, group.ready_at) == (GroupState.OPEN, 1, None)
    assert (row.state, row.fence, row.reward) == (EpisodeState.QUEUED, 2, None)
    (again,) = world.claimed(group_id)
    assert world.finish(again, world.body(again))
    assert world.group(group_id).state == GroupState.READY


def test_a_body_of_another_hash_or_fence_is_lost_too(world: World) -> None:
    (group_id,) = world.admit(0)
    claimed, other, *_ = world.claimed(group_id)
    for each in (claimed, other):
        world.finish(each, world.body(each, 1.0), body_timeout_s=-1.0)
    world.keep([world.body(claimed, 0.0)])
    world.caught_up()
    lost = world.store.ask(lambda session: due_episodes.bodies_overdue(session, world.run_id))
    assert lost == [claimed, other]


def test_bodies_lost_again_and_again_fail_the_member(world: World) -> None:
    (group_id,) = world.admit(0)
    claimed, *others = world.claimed(group_id)
    for other in others:
        world.finish(other, world.body(other))
    again: ClaimedEpisode | None = claimed
    for fence in range(1, MANY + 1):
        assert again is not None
        assert world.finish(again, world.body(again, 1.0))
        assert _lose(world, again)
        again = world.claim(f"{group_id}-0", fence + 1)
    row, group = world.episode(f"{group_id}-0"), world.group(group_id)
    assert (row.state, row.reason, row.reward) == (EpisodeState.FAILED, Reason.BODY_LOST, None)
    assert (group.state, group.pending) == (GroupState.READY, 0)
    assert world.accounting() == []


def test_a_body_of_a_closed_group_is_never_lost(world: World) -> None:
    bodies = world.ready(0, stored=False)
    group_id = bodies[0].group_id
    claimed = _of(world, bodies[0].episode_id)
    world.store.transact(
        lambda s: groups.close_groups(s, [group_id], GroupState.FILTERED, Reason.ZERO_SPREAD)
    )
    assert not _lose(world, claimed)
    assert world.group(group_id).state == GroupState.FILTERED


def test_the_end_of_a_run_closes_all_that_is_open(world: World) -> None:
    ready = world.ready(0)
    first, second = world.admit(1, 2)
    claimed = world.claimed(first)[0]
    assert world.store.transact(
        lambda session: runs.move_run(session, world.run_id, RunState.STOPPED, "by command")
    )
    states = {world.group(each).state for each in (ready[0].group_id, first, second)}
    assert states == {GroupState.CANCELLED}
    assert {row.state for row in world.members(second)} == {EpisodeState.CANCELLED}
    assert world.episode(ready[0].episode_id).state == EpisodeState.FINISHED
    assert not world.finish(claimed, world.body(claimed))
    assert not _retry(world, claimed)
    assert world.accounting() == []


def test_a_stop_during_claims_and_finishes_leaves_nothing_open(world: World) -> None:
    ids = world.admit(*range(6))
    claims = [claimed for group_id in ids[:3] for claimed in world.claimed(group_id)]
    run_concurrently(
        lambda: [world.finish(claimed, world.body(claimed)) for claimed in claims],
        lambda: [world.claimed(group_id) for group_id in ids[3:]],
        lambda: world.store.transact(
            lambda session: runs.move_run(session, world.run_id, RunState.STOPPED)
        ),
    )
    open_rows = world.ask("SELECT 1 FROM episodes WHERE state IN ('queued', 'running')")
    assert open_rows == []
    assert world.ask("SELECT 1 FROM groups WHERE state IN ('open', 'ready')") == []
    assert world.accounting() == []


def test_only_ready_groups_can_be_closed(world: World) -> None:
    (group_id,) = world.admit(0)
    closed = world.store.transact(
        lambda s: groups.close_groups(s, [group_id], GroupState.TRAINED, None)
    )
    assert closed == 0
    assert world.group(group_id).state == GroupState.OPEN


def test_admission_fills_in_the_version_it_saw(world: World) -> None:
    world.sql("UPDATE runs SET version = 3")
    (group_id,) = world.admit(0)
    assert world.group(group_id).admitted_version == 3
    with world.store.write() as session:
        groups.admit_groups(session, session.get_one(Run, world.run_id), [])


def _of(world: World, episode_id: str) -> ClaimedEpisode:
    return ClaimedEpisode.of(world.episode(episode_id))
