"""Each disagreement is planted alone, and the view names that one alone."""

from run_transitions import World
from sqlalchemy import text

from agentrl.core.trajectory import Trajectory
from agentrl.core.types import GroupState, Reason, Status
from agentrl.db.queries import progress
from agentrl.db.transitions import episodes, groups


def _trained(world: World, version: int = 1, position: int = 0) -> list[Trajectory]:
    """A group that was trained for a version, all witnesses in agreement."""
    bodies = world.ready(position)
    world.learn(version, bodies)
    return bodies


def test_a_clean_run_lists_nothing(world: World) -> None:
    _trained(world)
    world.ready(1)
    (group_id,) = world.admit(2)
    world.claimed(group_id)
    assert world.accounting() == []
    with world.store.read() as session:
        assert progress.disagreements(session, world.run_id) == []
        assert progress.disagreements(session, world.run_id, 1) == []


KINDS = "SELECT kind FROM accounting ORDER BY kind"
COPY = (
    "INSERT INTO trajectories (episode_id, fence, run_id, sha256, body, received_at)"
    " SELECT {}, run_id, sha256, body, 0 FROM trajectories WHERE episode_id = :e"
)
PLANTED = {
    "DELETE FROM trajectories WHERE episode_id = :e;UPDATE runs SET recorded_until = 1e12;"
    "UPDATE episodes SET due_at = 1 WHERE episode_id = :e": ["episode_without_body"],
    "DELETE FROM trajectories WHERE episode_id = :e;UPDATE runs SET recorded_until = 0;"
    "UPDATE episodes SET due_at = 1 WHERE episode_id = :e": ["episode_without_body"],
    "DELETE FROM trajectories WHERE episode_id = :e;"  # the recorder is behind
    "UPDATE episodes SET due_at = 1 WHERE episode_id = :e": [],
    "DELETE FROM trajectories WHERE episode_id = :e;UPDATE runs SET ended_at = 1": [
        "episode_without_body"
    ],
    "UPDATE trajectories SET sha256 = 'x' WHERE episode_id = :e": ["hash_differs"],
    COPY.format("'nobody', fence"): ["body_of_no_episode"],
    COPY.format("episode_id, 9"): ["body_of_no_episode"],
    "UPDATE update_groups SET sha256 = 'x' WHERE episode_id = :e": ["trained_unfinished"],
    "UPDATE update_groups SET fence = 7 WHERE episode_id = :e": ["trained_unfinished"],
    "UPDATE episodes SET state = 'failed', reason = 'lost' WHERE episode_id = :e": [
        "trained_unfinished"
    ],
    "UPDATE episodes SET state = 'failed', reason = 'tired' WHERE episode_id = :e": [
        "trained_unfinished",
        "without_reason",
    ],
    "UPDATE trajectories SET body = :b": ["body_differs"] * 4,
    "UPDATE trajectories SET body = ''": [],  # pruned
    "DELETE FROM steps": ["steps_missing"] * 4,
    "DELETE FROM update_groups WHERE episode_id = :e": ["member_not_trained"],
    "DELETE FROM update_groups WHERE group_id = :g": [
        "group_without_update",
        *["member_not_trained"] * 4,
    ],
    "UPDATE groups SET state = 'ready' WHERE group_id = :g": ["update_of_open_group"],
    "UPDATE groups SET pending = 2 WHERE group_id = :g": ["pending_differs"],
    "UPDATE runs SET version = 7": ["version_without_update"],
    "UPDATE updates SET loss_tokens = 0": ["update_tokens_differ"],
    "UPDATE update_groups SET loss_tokens = 999;UPDATE updates SET loss_tokens = 4 * 999": [
        "member_tokens_differ"
    ]
    * 4,
    "INSERT INTO checkpoints SELECT checkpoint_id || 'x', run_id, 9, 'nobody', path, NULL, 'live',"
    " created_at, NULL FROM checkpoints WHERE version = 1": ["checkpoint_without_update"],
    "INSERT INTO updates SELECT update_id || 'x', run_id, version, 2, checkpoint_id, state, '', 0,"
    " 0, 0, metrics, 0, 0 FROM updates": ["version_trained_twice"],
    "UPDATE groups SET size = 5 WHERE group_id = :g": ["members_differ"],
}


# Of a group that is ready, on which no update has been made.
WAITING = {
    "UPDATE groups SET state = 'open', ready_at = NULL": ["open_without_pending"],
    "UPDATE groups SET ready_at = ready_at - 604800": ["ready_untrained"],
    "UPDATE groups SET ready_at = ready_at - 604800;UPDATE runs SET state = 'paused'": [],
}


def test_a_group_that_never_trains_is_listed(world: World) -> None:
    world.ready(0)
    for planted, kinds in WAITING.items():
        assert world.after(planted, KINDS) == [(kind,) for kind in kinds], planted


def test_a_member_that_an_update_books_under_another_group_is_listed(world: World) -> None:
    bodies = _trained(world)
    other = world.ready(1)[0].group_id
    planted = "UPDATE update_groups SET group_id = :g WHERE episode_id = :e"
    found = world.after(planted, KINDS, g=other, e=bodies[0].episode_id)
    assert [kind for (kind,) in found] == ["trained_elsewhere", "update_of_open_group"]


def test_a_planted_disagreement_is_listed_alone(world: World) -> None:
    body = _trained(world)[0]
    for planted, kinds in PLANTED.items():
        found = world.after(planted, KINDS, e=body.episode_id, g=body.group_id, b=b"\0\xff")
        assert [kind for (kind,) in found] == kinds, planted
    assert world.accounting() == []


def test_what_closed_last_is_proven_as_the_whole_run_is(world: World) -> None:
    body = _trained(world)[0]
    names = {"e": body.episode_id, "g": body.group_id, "b": b"\0\xff"}

    def found(groups: int | None) -> list[tuple[str, str]]:
        return sorted(progress.disagreements(session, world.run_id, groups))

    for planted, kinds in PLANTED.items():
        with world.store.write() as session:
            for statement in planted.split(";"):
                session.execute(text(statement), names)
            assert sorted(kind for kind, _ in found(1)) == sorted(kinds), planted
            chain = [each for each in found(None) if each[0] == "trained_hash_differs"]
            assert [each for each in found(None) if each not in chain] == found(1)
            assert bool(chain) == ("update_groups SET sha256" in planted)
            session.rollback()


def test_of_groups_that_closed_long_ago_only_the_views_tell(world: World) -> None:
    old, _ = _trained(world, 1, 0), _trained(world, 2, 1)
    world.sql("UPDATE groups SET size = 5 WHERE group_id = :g", g=old[0].group_id)
    world.sql("UPDATE steps SET version = 9 WHERE episode_id = :e", e=old[0].episode_id)
    with world.store.read() as session:
        assert len(progress.disagreements(session, world.run_id)) > 1
        assert progress.disagreements(session, world.run_id, 1) == []
        assert progress.disagreements(session, world.run_id, 2) == progress.disagreements(
            session, world.run_id
        )


def test_the_steps_of_the_groups_that_closed_last_are_a_mix(world: World) -> None:
    bodies = _trained(world, 1, 0) + _trained(world, 2, 1)
    world.ready(2)
    steps = sum(len(body.steps) for body in bodies)
    with world.store.read() as session:
        assert sum(progress.policy_mix(session, world.run_id, 1).values()) == steps / 2
        assert sum(progress.policy_mix(session, world.run_id, 9).values()) == steps
        assert sum(progress.policy_mix(session, world.run_id).values()) > steps


def test_an_episode_trained_by_two_updates_is_listed(world: World) -> None:
    first, _ = _trained(world, 1, 0), _trained(world, 2, 1)
    world.sql(
        "INSERT INTO update_groups (update_id, episode_id, group_id, fence, sha256, loss_tokens)"
        " SELECT :u, episode_id, group_id, fence, sha256, loss_tokens FROM update_groups"
        " WHERE episode_id = :e",
        u=f"{world.run_id}-u2",
        e=first[0].episode_id,
    )
    assert world.accounting() == ["trained_twice"]
    world.sql("UPDATE updates SET state = 'rolled_back' WHERE version = 2")
    assert "trained_twice" not in world.accounting()


def test_an_open_row_past_its_deadline_is_listed(world: World) -> None:
    (group_id,) = world.admit(0, size=2)
    for values in ("state = 'running', due_at = 1", "due_at = 1", "due_at = 0, queued_at = 1"):
        planted = f"UPDATE episodes SET {values} WHERE episode_id = :e"  # noqa: S608
        assert world.after(planted, KINDS, e=f"{group_id}-0") == [("overdue",)], planted
    assert world.accounting() == []


def test_what_was_closed_untrained_says_why(world: World) -> None:
    (first, second) = world.ready(0)[0].group_id, world.ready(1)[0].group_id
    with world.store.write() as session:
        groups.close_groups(session, [first], GroupState.STALE, Reason.TOO_STALE)
        groups.close_groups(session, [second], GroupState.STALE, None)
    named = world.ask("SELECT kind, group_id, reason FROM accounting")
    assert named == [("without_reason", second, None)]
    world.sql("UPDATE groups SET reason = 'whim' WHERE group_id = :g", g=second)
    assert world.ask("SELECT reason FROM accounting") == [("whim",)]


def test_why_an_open_attempt_was_last_given_up_can_be_asked(world: World) -> None:
    (group_id,) = world.admit(0, size=2)
    again, failing = world.claimed(group_id)
    for claimed, most in ((again, 2), (failing, 1)):
        world.store.transact(
            lambda s, c=claimed, m=most: episodes.retry(  # type: ignore[misc]
                s, c, Reason.TIMEOUT, max_attempts=m, detail=Status.TIMEOUT
            )
        )
    ends = "SELECT state, status, reason, number, attempts FROM episode_outcomes ORDER BY state"
    assert world.ask(ends) == [
        ("failed", "timeout", "timeout", 1, 1),
        ("queued", None, "timeout", 1, 1),
    ]
    (second,) = world.claimed(group_id)
    assert world.finish(second, world.body(second))
    assert world.ask(ends)[1] == ("finished", "completed", None, 1, 2)


def test_a_row_open_after_the_end_is_listed(world: World) -> None:
    world.admit(0, size=2)
    world.sql("UPDATE runs SET state = 'stopped', ended_at = 1")
    assert world.accounting() == ["open_after_end"] * 2


UNEXPLAINED = (
    "UPDATE steps SET server_id = 'another' WHERE number = 0",
    "UPDATE steps SET version = 9 WHERE number = 0",
    "UPDATE steps SET checkpoint_id = 'unregistered' WHERE number = 0",
    "UPDATE servings SET live_until = 1",
    "UPDATE servings SET live_from = live_from + 1000",
)


def test_a_step_that_no_live_policy_explains_is_listed(world: World) -> None:
    world.ready(0)
    assert world.ask("SELECT * FROM unserved_steps") == []
    for planted in UNEXPLAINED:
        found = world.after(planted, "SELECT MIN(number) FROM unserved_steps")
        assert found == [(0,)], planted
    world.sql(UNEXPLAINED[0])
    with world.store.read() as session:
        found = progress.disagreements(session, world.run_id)
    assert {kind for kind, _ in found} == {"unserved_step"}


def test_what_became_of_groups_is_counted_with_its_reason(world: World) -> None:
    _trained(world)
    (lossy,) = world.admit(1)
    for number, claimed in enumerate(world.claimed(lossy)):
        if number:
            world.finish(claimed, world.body(claimed, float(number > 1)))
        else:
            world.store.transact(
                lambda s, c=claimed: episodes.retry(  # type: ignore[misc]
                    s, c, Reason.ENV_ERROR, max_attempts=1, detail=Status.ENV_ERROR
                )
            )
    world.ready(2, (1.0, 1.0))
    with world.store.write() as session:
        flat = [f"{world.run_id}-dbbench-2"]
        groups.close_groups(session, flat, GroupState.FILTERED, Reason.ZERO_SPREAD)
    rows = world.ask(
        "SELECT task, state, reason, number, partial, lost_members FROM group_outcomes "
        "ORDER BY state"
    )
    assert rows == [
        ("dbbench", "filtered", "zero_spread", 1, 0, 0),
        ("dbbench", "ready", None, 1, 1, 1),
        ("dbbench", "trained", None, 1, 0, 0),
    ]
