"""The model check finds what it is there to find: each rule of the protocol, broken alone."""

import dataclasses
from collections.abc import Callable
from typing import Any

import paused_processes
import pytest
from protocol_machine import check
from protocol_stores import Database
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from agentrl.core.trajectory import Trajectory
from agentrl.core.types import EpisodeState
from agentrl.db.models.episodes import Episode
from agentrl.db.transitions import due_episodes, episodes, updates
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.workers.settlement import Settlement

Patch = Callable[[pytest.MonkeyPatch], None]
EXAMPLES, STEPS = 40, 150  # at most: the first that finds it ends the check


def _no_compare(patch: pytest.MonkeyPatch) -> None:
    """Transitions set their row whatever state it is in."""

    def move(session: Session, _transition: object, claimed: ClaimedEpisode, values: Any) -> bool:
        session.execute(
            update(Episode)
            .where(Episode.episode_id == claimed.episode_id, Episode.fence == claimed.fence)
            .values(**values)
            .execution_options(synchronize_session=False)
        )
        return True

    patch.setattr(episodes, "_move", move)


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    """Transitions of an attempt that was given up move the row of its successor."""

    def move(session: Session, transition: Any, claimed: ClaimedEpisode, values: Any) -> bool:
        expected = episodes.FROM.get(transition, EpisodeState.RUNNING)
        result: Any = session.execute(
            update(Episode)
            .where(Episode.episode_id == claimed.episode_id, Episode.state == expected)
            .values(**values)
            .execution_options(synchronize_session=False)
        )
        return bool(result.rowcount)

    patch.setattr(episodes, "_move", move)


def _a_claim_that_two_win(patch: pytest.MonkeyPatch) -> None:
    def claim(
        session: Session, episode_id: str, fence: int, worker_id: str, *, deadline_s: float
    ) -> ClaimedEpisode | None:
        row = session.get(Episode, episode_id, populate_existing=True)
        if row is None or row.fence != fence or row.state not in ("queued", "running"):
            return None
        row.state, row.worker_id, row.attempts = EpisodeState.RUNNING, worker_id, row.attempts + 1
        row.due_at = (session.scalar(select(episodes.now())) or 0.0) + deadline_s
        return ClaimedEpisode.of(row)

    patch.setattr(episodes, "claim", claim)


def _no_epoch(patch: pytest.MonkeyPatch) -> None:
    """A trainer that was replaced commits all the same, whatever its weights grew from."""
    patch.setattr(updates, "_require_epoch", lambda run, _run_id, _epoch: run)
    patch.setattr(updates, "_require_parent", lambda _session, _run, _new: None)


def _no_bound(patch: pytest.MonkeyPatch) -> None:
    real = episodes.retry
    patch.setattr(episodes, "retry", lambda *a, **k: real(*a, **k | {"max_attempts": 99}))


def _a_roll_back_that_forgets_its_groups(patch: pytest.MonkeyPatch) -> None:
    real = updates.roll_back

    def roll_back(session: Session, run_id: str, checkpoint: Any, *, epoch: int) -> int:
        undone = real(session, run_id, checkpoint, epoch=epoch)
        session.execute(
            update(updates.Group)
            .where(updates.Group.run_id == run_id, updates.Group.state == "rolled_back")
            .values(state="trained", reason=None)
            .execution_options(synchronize_session=False)
        )
        return undone

    patch.setattr(updates, "roll_back", roll_back)


def _leases_that_never_end(patch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong, and nothing goes on."""
    patch.setattr(due_episodes, "expired_attempts", lambda *_args, **_kwargs: [])


class _Later:
    """A publisher that keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, ...]] = []

    def publish(self, *message: Any, **_waiting: object) -> None:
        self.kept.append(message)


def _a_claim_before_its_body(patch: pytest.MonkeyPatch) -> None:
    """The row says finished before the broker holds the body."""
    finish = Settlement.finish

    def claimed_first(self: Settlement, claimed: ClaimedEpisode, trajectory: Trajectory) -> str:
        publisher = _Later()
        other = dataclasses.replace(self, publisher=publisher)  # type: ignore[arg-type]
        ended = finish(other, claimed, trajectory)
        for message in publisher.kept:
            self.publisher.publish(*message)
        return ended

    patch.setattr(Settlement, "finish", claimed_first)


def _a_journal_that_anybody_writes(patch: pytest.MonkeyPatch) -> None:
    """An attempt that was given up stores steps beside its successor."""
    real = paused_processes.append_steps

    def append(session: Session, steps: Any) -> set[Any]:
        ((fence, began),) = session.execute(
            select(Episode.fence, Episode.started_at).where(
                Episode.episode_id == steps[0].episode_id
            )
        )
        real(session, [dataclasses.replace(each, fence=fence, started_at=began) for each in steps])
        return set()

    patch.setattr(paused_processes, "append_steps", append)


def _a_lost_attempt_that_takes_its_journal_along(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(episodes, "CONTINUABLE", frozenset())


MUTATIONS: list[Patch] = [
    _a_journal_that_anybody_writes,
    _a_lost_attempt_that_takes_its_journal_along,
    _a_claim_before_its_body,
    _no_compare,
    _no_fence,
    _a_claim_that_two_win,
    _no_epoch,
    _no_bound,
    _a_roll_back_that_forgets_its_groups,
    _leases_that_never_end,
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.__name__.strip("_"))
def test_a_broken_rule_is_found(
    mutation: Patch, monkeypatch: pytest.MonkeyPatch, sqlite: Database
) -> None:
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        check(sqlite, EXAMPLES, STEPS)
