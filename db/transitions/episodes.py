"""The state machine of groups and episodes: named transitions, each a compare-and-set.

    episode   queued ─claim─▶ running ─finish─▶ finished ─lose_body─▶ queued (next fence)
                ▲                │
                └─── retry ──────┤ (next fence, bounded attempts)   any open ─cancel─▶ cancelled
                                 └─ … ─▶ failed(reason)
    group     open ─(last member terminal)─▶ ready | failed;  ready ─▶ trained | filtered | stale

Every transition that changes a group locks its row before its members', so that two of them never
deadlock. A transition that does not apply changes nothing, is counted in `refusals`, and returns
False or None.
"""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import CursorResult, select, tuple_, update
from sqlalchemy.orm import Session

from agentrl.core.types import (
    GROUP_OPEN,
    EpisodeState,
    GroupState,
    Reason,
    Status,
    Transition,
)
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.store import now
from agentrl.db.transitions import groups, prepared_statements, refusals
from agentrl.db.transitions.groups import lock_group, lock_group_row, settle_group
from agentrl.db.transitions.trajectories import journal


@dataclass(frozen=True, slots=True)
class ClaimedEpisode:
    """An attempt that this worker owns until its lease or its deadline ends.

    `horizon`: turn limit of its group, if read. `waited_s`: seconds since it was queued.
    `started_at`: when it was claimed, on the database's clock. It distinguishes two attempts with
    one fence, of which the database forgot the first when it lost its newest commits.
    """

    episode_id: str
    group_id: str
    member: int
    task: str
    item_id: str
    fence: int
    attempt: int
    horizon: int | None = None
    waited_s: float = dataclasses.field(default=0.0, compare=False)
    started_at: float | None = dataclasses.field(default=None, compare=False)

    @classmethod
    def of(cls, row: Episode) -> "ClaimedEpisode":
        """Return the current attempt of an episode's row."""
        return cls(
            row.episode_id,
            row.group_id,
            row.member,
            row.task,
            row.item_id,
            row.fence,
            row.attempts,
            started_at=row.started_at,
        )


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """The result of a finished attempt. Tokens are counts."""

    status: Status
    reward: float
    score: float
    turns: int
    tokens: int
    loss_tokens: int
    body_sha256: str


FROM = {Transition.LOSE_BODY: EpisodeState.FINISHED}  # every other move begins at running
RESULT = tuple(field.name for field in dataclasses.fields(EpisodeResult))
FINISHED = prepared_statements.finish(RESULT)
NEVER_SENT = 0.0  # `due_at` of an episode that is queued anew
PAUSE_S = 5.0  # with 3 attempts 15 s in all: a service that restarts costs no episode
# The next attempt may continue from the journal: it was not the attempt itself that failed.
CONTINUABLE = frozenset({Reason.LOST, Reason.BODY_LOST, Reason.JUDGE_ERROR})


def claim(
    session: Session, episode_id: str, fence: int, worker_id: str, *, deadline_s: float
) -> ClaimedEpisode | None:
    """queued → running: counts the attempt, starts its deadline. None if not ours to take."""
    named = {"claimed": episode_id, "of_fence": fence, "by": worker_id, "deadline_s": deadline_s}
    row = session.execute(prepared_statements.CLAIM, named).one_or_none()
    if row is None:
        refusals.of_episode(session, Transition.CLAIM, episode_id, fence)
        return None
    group_id, member, task, item_id, attempt, began, waited_s, most = row
    return ClaimedEpisode(
        episode_id, group_id, member, task, item_id, fence, attempt, most, waited_s, began
    )


def is_claimed_by(
    session: Session, episode_id: str, fence: int, worker_id: str
) -> ClaimedEpisode | None:
    """Return the attempt that this worker has claimed although the answer was lost; or None."""
    row = session.get(Episode, episode_id)
    if row is None or row.state != EpisodeState.RUNNING:
        return None
    if row.fence != fence or row.worker_id != worker_id:
        return None
    horizon = session.get_one(Group, row.group_id).horizon
    waited_s = max((row.started_at or row.queued_at) - row.queued_at, 0.0)
    return dataclasses.replace(ClaimedEpisode.of(row), horizon=horizon, waited_s=waited_s)


def finish(
    session: Session, claimed: ClaimedEpisode, result: EpisodeResult, *, body_timeout_s: float
) -> bool:
    """running → finished, for a published body; False if the claim has expired."""
    lock_group_row(session, claimed.group_id)
    named = {f"of_{name}": value for name, value in dataclasses.asdict(result).items()}
    named |= {"claimed": claimed.episode_id, "of_fence": claimed.fence}
    named["began"] = claimed.started_at
    done = session.execute(FINISHED, named | {"body_timeout_s": body_timeout_s})
    if not _record_refusal(session, Transition.FINISH, claimed, done):
        return False
    settle_group(session, claimed.group_id)
    return True


def is_finished_with(session: Session, claimed: ClaimedEpisode, body_sha256: str) -> bool:
    """Return whether this attempt has finished with this body although the answer was lost."""
    row = session.get(Episode, claimed.episode_id)
    return row is not None and (row.state, row.fence, row.started_at, row.body_sha256) == (
        EpisodeState.FINISHED, claimed.fence, claimed.started_at, body_sha256
    )  # fmt: skip


def postpone(
    session: Session, worker_id: str, attempts: Collection[tuple[str, int]], *, deadline_s: float
) -> None:
    """Extend the deadlines of a worker's attempts, as (episode_id, fence).

    They wait for a broker or a policy that is unavailable, within limits of their own.
    """
    if not attempts:
        return
    session.execute(
        update(Episode)
        .where(
            tuple_(Episode.episode_id, Episode.fence).in_(sorted(attempts)),
            Episode.worker_id == worker_id,
            Episode.state == EpisodeState.RUNNING,
        )
        .values(due_at=now() + deadline_s)
        .execution_options(synchronize_session=False)
    )


def retry(
    session: Session, claimed: ClaimedEpisode, reason: Reason, *, max_attempts: int, detail: Status
) -> bool:
    """running → queued with the next fence, or → failed(reason) after `max_attempts`.

    A queued row keeps the reason until it is finished. It is sent after PAUSE_S for each attempt
    that failed: unlike a lost worker, what failed may fail again at once.
    """
    lock_group(session, claimed.group_id)
    again = claimed.attempt < max_attempts
    values = {"state": EpisodeState.FAILED, "status": detail, "ended_at": now()}
    if again:
        values = _queued_values(claimed.fence)
        if reason is not Reason.LOST:
            values["due_at"] = now() + PAUSE_S * claimed.attempt
    if not _move(session, Transition.RETRY, claimed, values | {"reason": reason}):
        return False
    _end_attempt(session, claimed, reason, again=again)
    return True


def release(session: Session, claimed: ClaimedEpisode) -> bool:
    """running → queued with the next fence: a stopping worker gives it back, uncounted."""
    values = _queued_values(claimed.fence) | {"attempts": Episode.attempts - 1}
    return _move(session, Transition.RELEASE, claimed, values)


def release_all(session: Session, worker_id: str) -> int:
    """`release` all running attempts of a worker that cannot wait; return their number."""
    result = session.execute(
        update(Episode)
        .where(Episode.worker_id == worker_id, Episode.state == EpisodeState.RUNNING)
        .values(_queued_values(Episode.fence) | {"attempts": Episode.attempts - 1})
        .execution_options(synchronize_session=False)
    )
    return cast(CursorResult[Any], result).rowcount


def lose_body(
    session: Session,
    claimed: ClaimedEpisode,
    *,
    max_attempts: int,
    reason: Reason = Reason.BODY_LOST,
) -> bool:
    """finished → queued with the next fence, or → failed(reason); its group opens again.

    Not for a group that the trainer holds.
    """
    group = lock_group(session, claimed.group_id)
    if group is None or group.state not in GROUP_OPEN or groups.is_taken(session, group):
        refusals.of_episode(session, Transition.LOSE_BODY, claimed.episode_id, claimed.fence)
        return False
    again = claimed.attempt < max_attempts
    values: dict[str, Any] = dict.fromkeys(RESULT)
    values |= {"state": EpisodeState.FAILED, "status": Status.LOST}
    if again:
        values = _queued_values(claimed.fence)
    if not _move(session, Transition.LOSE_BODY, claimed, values | {"reason": reason}):
        return False
    group.pending += 1
    group.state, group.ready_at = GroupState.OPEN, None
    session.flush()
    _end_attempt(session, claimed, reason, again=again)
    return True


def _end_attempt(session: Session, claimed: ClaimedEpisode, reason: Reason, *, again: bool) -> None:
    """Delete a journal that no attempt continues; settle the group of an episode that failed."""
    if not again or reason not in CONTINUABLE:
        journal.forget_episodes(session, [claimed.episode_id])
    if not again:
        settle_group(session, claimed.group_id)


def is_cancelled(session: Session, episode_id: str) -> bool:
    """Return whether the end of its run cancelled the episode."""
    state = session.scalar(select(Episode.state).where(Episode.episode_id == episode_id))
    return state == EpisodeState.CANCELLED


def _queued_values(fence: Any) -> dict[str, Any]:
    return {
        "state": EpisodeState.QUEUED,
        "fence": fence + 1,
        "worker_id": None,
        "due_at": NEVER_SENT,
        "queued_at": now(),
        "started_at": None,
        "ended_at": None,
        **dict.fromkeys(RESULT),
    }


def _move(
    session: Session, transition: Transition, claimed: ClaimedEpisode, values: dict[str, Any]
) -> bool:
    """Compare-and-set the row of a claimed attempt."""
    result = session.execute(
        update(Episode)
        .where(
            Episode.episode_id == claimed.episode_id,
            Episode.fence == claimed.fence,
            Episode.started_at == claimed.started_at,
            Episode.state == FROM.get(transition, EpisodeState.RUNNING),
        )
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    return _record_refusal(session, transition, claimed, result)


def _record_refusal(
    session: Session, transition: Transition, claimed: ClaimedEpisode, done: Any
) -> bool:
    """Return whether a compare-and-set changed its row; count a refusal."""
    moved = cast(CursorResult[Any], done).rowcount == 1
    if not moved:
        refusals.of_episode(session, transition, claimed.episode_id, claimed.fence)
    return moved
