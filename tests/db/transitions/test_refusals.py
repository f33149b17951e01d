"""Every transition that is refused leaves one row, and changes nothing else."""

from collections.abc import Callable

from run_transitions import World
from sqlalchemy.orm import Session

from agentrl.core.types import GroupState, Reason, RunState, Status, Transition
from agentrl.db.transitions import episodes, groups, refusals, runs
from agentrl.db.transitions.episodes import ClaimedEpisode

MANY = 3
Refused = tuple[str, str, int | None, str, int | None]


def _refusals(world: World) -> list[Refused]:
    return world.ask(
        "SELECT transition, subject, fence, found, found_fence FROM refusals ORDER BY refusal_id"
    )


def _lapsed(world: World) -> ClaimedEpisode:
    """A claim that was given up, so that its row stands queued with the next fence."""
    (group_id,) = world.admit(0)
    claimed = world.claim(f"{group_id}-0")
    assert claimed is not None
    assert world.store.transact(lambda session: episodes.release(session, claimed))
    return claimed


def _retry(session: Session, claimed: ClaimedEpisode) -> bool:
    return episodes.retry(session, claimed, Reason.LOST, max_attempts=MANY, detail=Status.LOST)


MOVES: dict[Transition, Callable[[Session, ClaimedEpisode], object]] = {
    Transition.CLAIM: lambda s, c: episodes.claim(s, c.episode_id, c.fence, "w", deadline_s=1.0),
    Transition.RETRY: _retry,
    Transition.RELEASE: episodes.release,
    Transition.LOSE_BODY: lambda s, c: episodes.lose_body(s, c, max_attempts=MANY),
}


def test_moves_of_an_attempt_that_was_given_up_are_counted(world: World) -> None:
    claimed = _lapsed(world)
    before = world.ask("SELECT * FROM episodes ORDER BY episode_id")
    for transition, move in MOVES.items():
        assert not world.store.transact(lambda s, m=move: m(s, claimed)), transition  # type: ignore[misc]
    assert not world.finish(claimed, world.body(claimed))
    expected = [*MOVES, Transition.FINISH]
    assert _refusals(world) == [(t, claimed.episode_id, 1, "queued", 2) for t in expected]
    assert world.ask("SELECT * FROM episodes ORDER BY episode_id") == before
    assert world.ask(
        "SELECT run_id, transition, found, number FROM refused_transitions ORDER BY transition"
    ) == sorted((world.run_id, t.value, "queued", 1) for t in expected)
    assert world.accounting() == []


def test_what_applies_is_not_counted(world: World) -> None:
    world.ready(1)
    _lapsed(world)
    world.store.transact(lambda s: runs.move_run(s, world.run_id, RunState.STOPPED))
    assert _refusals(world) == []


def test_a_group_that_is_not_ready_is_counted_and_the_others_close(world: World) -> None:
    ready = world.ready(0)[0].group_id
    (still_open,) = world.admit(1)
    closing = [ready, still_open]
    moved = world.store.transact(
        lambda s: groups.close_groups(s, closing, GroupState.STALE, Reason.TOO_STALE)
    )
    assert moved == 1
    assert _refusals(world) == [(Transition.CLOSE, still_open, None, "open", None)]


def test_a_body_of_a_closed_group_that_is_called_lost_is_counted(world: World) -> None:
    body = world.ready(0)[0]
    world.store.transact(
        lambda s: groups.close_groups(s, [body.group_id], GroupState.FILTERED, Reason.ZERO_SPREAD)
    )
    row = world.episode(body.episode_id)
    claimed = ClaimedEpisode.of(row)
    assert not world.store.transact(lambda s: episodes.lose_body(s, claimed, max_attempts=MANY))
    assert _refusals(world) == [(Transition.LOSE_BODY, body.episode_id, 1, "finished", 1)]


def test_a_run_that_is_over_moves_no_more(world: World) -> None:
    def move(state: RunState) -> bool:
        return world.store.transact(lambda s: runs.move_run(s, world.run_id, state))

    assert move(RunState.STOPPED)
    assert not move(RunState.RUNNING)
    assert _refusals(world) == [(Transition.MOVE_RUN, world.run_id, 0, "stopped", 0)]
    assert world.run().state == RunState.STOPPED


def test_what_no_row_has_is_refused_and_belongs_to_no_run(world: World) -> None:
    assert world.claim("no such episode") is None
    assert not world.store.transact(lambda s: runs.move_run(s, "no such run", RunState.PAUSED))
    assert _refusals(world) == []


def test_pruning_keeps_the_latest_refusals_of_its_run(world: World) -> None:
    (group_id,) = world.admit(0)

    def refuse(session: Session) -> None:
        for fence in range(100, 130):
            episodes.claim(session, f"{group_id}-0", fence, "nobody", deadline_s=1.0)

    def prune(run_id: str, kept: int) -> list[int]:
        world.store.transact(lambda session: refusals.prune(session, run_id, kept=kept))
        return [fence for _, _, fence, _, _ in _refusals(world) if fence is not None]

    world.store.transact(refuse)
    assert prune(world.run_id, 30) == list(range(100, 130))
    assert prune(world.run_id, 3) == [127, 128, 129]
    assert prune("another", 0) == [127, 128, 129]
