"""What the updates of a run looked at, in order: the batches of a second training.

A group that an update trained on or left out belongs to it. One that was closed before (no spread,
too old) belongs to the update whose batch was being chosen. Groups that no trainer has closed are
left out.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import func, select, true
from sqlalchemy.orm import Session, aliased

from agentrl.core.types import GROUP_UNTRAINED, TRAINABLE, EpisodeState
from agentrl.db.models.episodes import Episode, Group, Step, StoredTrajectory
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint, Update, UpdateGroup
from agentrl.db.query_parts import same_attempt
from agentrl.db.registry import checkpoints

ORIGIN = func.coalesce(Group.origin_id, Group.group_id)

Row = tuple[int, float, str, str]  # batch, ready_at, group, the group that was played


@dataclass(frozen=True, slots=True)
class HistoryBatch:
    """Groups that the update to `version` looked at, in the trainer's order.

    `group_ids`: with the id of the group that was played, which is another one for a copy.
    """

    version: int
    group_ids: tuple[tuple[str, str], ...]


def read_batches(session: Session, run_id: str) -> Sequence[HistoryBatch]:
    """Return the batches of the live lineage; of a run of copies, those of the originals."""
    rows = _of_copies(session, run_id) or _of_updates(session, run_id)
    return [
        HistoryBatch(version, tuple((group_id, origin) for _, _, group_id, origin in batch))
        for version, batch in groupby(sorted(rows), key=lambda row: row[0])
    ]


def _of_copies(session: Session, run_id: str) -> list[Row]:
    """Return the newest copy of each original: a roll-back leaves the former one behind."""
    query = (
        select(Group.batch, Group.ready_at, Group.group_id, ORIGIN)
        .where(Group.run_id == run_id, Group.batch.is_not(None))
        .order_by(Group.round)
    )
    newest: dict[str, Row] = {}
    for batch, ready_at, group_id, origin in session.execute(query):
        newest[origin] = (batch or 0, ready_at or 0.0, group_id, origin)
    return list(newest.values())


def _of_updates(session: Session, run_id: str) -> list[Row]:
    """Groups that were closed after the last update had started come last, as one batch."""
    live = (Update.run_id == run_id, Update.is_live)
    starts = session.scalars(select(Update.started_at).where(*live).order_by(Update.version)).all()
    trained = (
        select(Update.version, Group.ready_at, Group.group_id, ORIGIN)
        .join(UpdateGroup, UpdateGroup.update_id == Update.update_id)
        .join(Group, Group.group_id == UpdateGroup.group_id)
        .where(*live)
        .distinct()
    )
    closed = (
        select(Update.version, Group.closed_at, Group.ready_at, Group.group_id, ORIGIN)
        .select_from(Group)
        .outerjoin(Update, Update.update_id == Group.left_out_of)
        .where(Group.run_id == run_id, Group.state.in_(GROUP_UNTRAINED))
    )
    rows: list[Row] = [
        (version, ready_at or 0.0, group_id, origin)
        for version, ready_at, group_id, origin in session.execute(trained)
    ]
    for left_out_version, closed_at, ready_at, group_id, origin in session.execute(closed):
        version = left_out_version or bisect_left(starts, closed_at or 0.0) + 1
        rows.append((version, ready_at or 0.0, group_id, origin))
    return rows


def starting_checkpoint(session: Session, run: Run) -> Checkpoint | None:
    """Return the run's first checkpoint; of a run without any, the one it comes from."""
    own = checkpoints.live_checkpoints(session, run.run_id)
    return own[0] if own else session.get(Checkpoint, run.forked_from or "")


def first_changed_batch(session: Session, run_id: str) -> int | None:
    """Return the first batch of copies in which a reward is not the original's; None: none is.

    A deleted original counts as another reward.
    """
    original, turn = aliased(Episode), aliased(Step)
    episodes = (
        select(func.min(Group.batch))
        .join(Episode, Episode.group_id == Group.group_id)
        .outerjoin(
            original, (original.group_id == Group.origin_id) & (original.member == Episode.member)
        )
        .where(Group.run_id == run_id, Group.origin_id.is_not(None))
    )
    turns = episodes.join(Step, same_attempt(Step, Episode)).join(
        turn, same_attempt(turn, original) & (turn.number == Step.number)
    )
    found = (
        session.scalar(
            episodes.where(
                original.episode_id.is_(None) | original.reward.is_distinct_from(Episode.reward)
            )
        ),
        session.scalar(
            turns.where(
                turn.reward.is_distinct_from(Step.reward)
                | turn.branch_reward.is_distinct_from(Step.branch_reward)
            )
        ),
    )
    return min((batch for batch in found if batch is not None), default=None)


def first_incomplete_batch(session: Session, run_id: str, played_id: str) -> int | None:
    """Return the first update of the run `played_id` of whose groups one cannot be copied from the
    run `run_id`; None: all can be.

    It was not copied there, or its bodies are not stored any more. Groups closed without an update
    do not count.
    """
    live = (Update.run_id == played_id, Update.is_live)
    trained = (
        select(Update.version, UpdateGroup.group_id)
        .join(UpdateGroup, UpdateGroup.update_id == Update.update_id)
        .where(*live)
    )
    left_out = (
        select(Update.version, Group.group_id)
        .join(Group, Group.left_out_of == Update.update_id)
        .where(*live)
    )
    chosen = trained.union(left_out).subquery()
    members = (
        select(chosen.c.version, Episode.group_id, Episode.member)
        .join(Episode, Episode.group_id == chosen.c.group_id)
        .where(Episode.state == EpisodeState.FINISHED, Episode.status.in_(TRAINABLE))
    )
    stored = (
        select(ORIGIN, Episode.member)
        .join(Episode, Episode.group_id == Group.group_id)
        .join(StoredTrajectory, same_attempt(StoredTrajectory, Episode))
        .where(Group.run_id == run_id, func.length(StoredTrajectory.body) > 0)
    )
    known = {tuple(row) for row in session.execute(stored)}
    lacking = (row[0] for row in session.execute(members) if tuple(row[1:]) not in known)
    return min(lacking, default=None)


def sampled_versions(session: Session, run_id: str) -> dict[str, int]:
    """Return the versions of the checkpoints that acted in a run's episodes."""
    query = (
        select(Step.checkpoint_id, Step.version)
        .where(Step.run_id == run_id, Step.version >= 0)
        .distinct()
    )
    return {checkpoint_id: version for checkpoint_id, version in session.execute(query)}


def mixed_episodes(session: Session, run_id: str) -> Sequence[tuple[str, str]]:
    """Return (group, episode) where several checkpoints sampled what can be trained on."""
    query = (
        select(Episode.group_id, Episode.episode_id)
        .join(Step, same_attempt(Step, Episode))
        .where(
            Episode.run_id == run_id,
            Episode.state == EpisodeState.FINISHED,
            Episode.status.in_(TRAINABLE),
            Step.version >= 0,
            func.coalesce(Step.trained, true()),
        )
        .group_by(Episode.group_id, Episode.episode_id)
        .having(func.count(Step.checkpoint_id.distinct()) > 1)
        .order_by(Episode.episode_id)
    )
    return [(group_id, episode_id) for group_id, episode_id in session.execute(query)]


def played_run(session: Session, batches: Sequence[HistoryBatch]) -> Run | None:
    """Return the run that played the groups; None if it was deleted."""
    origin = session.get(Group, batches[0].group_ids[0][1])
    return session.get(Run, origin.run_id) if origin else None
