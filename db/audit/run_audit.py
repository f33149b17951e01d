"""The audit of a finished run: stricter than the view `accounting`, without deadlines.

A finding is lost (a body, a position of the item stream, an episode that never ended), trained
twice, or unbalanced (rows that disagree in any other way).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from sqlalchemy import case, func, select, text
from sqlalchemy.orm import Session

from agentrl.core.errors import MessageError
from agentrl.core.trajectory_body import body_of
from agentrl.core.types import EpisodeState, GroupState
from agentrl.db.models.episodes import Episode, Group, Step, StoredTrajectory
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint, Update, UpdateGroup
from agentrl.db.queries.liveness import Claim
from agentrl.db.queries.progress import disagreements
from agentrl.db.query_parts import same_attempt
from agentrl.db.transitions.item_streams import positions_to_repeat

Class = Literal["lost", "trained_twice", "unbalanced"]
LOST = {"episode_without_body", "member_not_trained", "overdue", "open_after_end"}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A problem of a run."""

    among: Class
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class AuditRules:
    """Rules from the configuration. `whole_stream`: no item is paused or retired, so none is
    skipped.
    """

    max_attempts: int
    whole_stream: bool = True


def audit(
    session: Session, run_id: str, claims: Collection[Claim], rules: AuditRules
) -> list[Finding]:
    """Return all problems. `claims`: bodies that rows claimed during the run."""
    found = {
        *_views(session, run_id),
        *_broken_claims(session, run_id, claims),
        *_missing_bodies(session, run_id),
        *_damaged_bodies(session, run_id),
        *_stream(session, run_id, rules),
        *_missing_repeats(session, run_id),
        *_trained_twice(session, run_id),
        *_lineage(session, run_id),
        *_tokens(session, run_id),
        *_attempts(session, run_id, rules),
    }
    return sorted(found)


def _views(session: Session, run_id: str) -> Iterator[Finding]:
    for kind, detail in disagreements(session, run_id):
        if kind == "trained_twice":
            yield Finding("trained_twice", kind, detail)
        else:
            yield Finding("lost" if kind in LOST else "unbalanced", kind, detail)


def _broken_claims(session: Session, run_id: str, claims: Collection[Claim]) -> Iterator[Finding]:
    """Check that the body of every claim was stored: it is published before the claim."""
    query = select(
        StoredTrajectory.episode_id, StoredTrajectory.fence, StoredTrajectory.sha256
    ).where(StoredTrajectory.run_id == run_id)
    stored = {tuple(row) for row in session.execute(query)}
    for episode_id, fence, sha256 in set(claims) - stored:
        yield Finding("lost", "claim_without_body", f"{episode_id} fence {fence} {sha256[:12]}")


def _missing_bodies(session: Session, run_id: str) -> Iterator[Finding]:
    """Check that trained bodies are stored with the hash of the update."""
    query = (
        select(UpdateGroup.episode_id, UpdateGroup.fence)
        .join(Update, Update.update_id == UpdateGroup.update_id)
        .outerjoin(
            StoredTrajectory,
            same_attempt(StoredTrajectory, UpdateGroup)
            & (StoredTrajectory.sha256 == UpdateGroup.sha256),
        )
        .where(
            Update.run_id == run_id,
            Update.is_live,
            StoredTrajectory.episode_id.is_(None),
        )
    )
    for episode_id, fence in session.execute(query):
        yield Finding("lost", "trained_without_body", f"{episode_id} fence {fence}")


def _damaged_bodies(session: Session, run_id: str) -> Iterator[Finding]:
    """Check that every stored body decodes to a trajectory with its hash, and has as many tokens in
    the loss as the live update that learned from it says.
    """
    live = select(Update.update_id).where(Update.run_id == run_id, Update.is_live)
    query = (
        select(
            StoredTrajectory.episode_id,
            StoredTrajectory.fence,
            StoredTrajectory.sha256,
            StoredTrajectory.body,
            UpdateGroup.loss_tokens,
        )
        .outerjoin(
            UpdateGroup,
            same_attempt(UpdateGroup, StoredTrajectory) & UpdateGroup.update_id.in_(live),
        )
        .where(StoredTrajectory.run_id == run_id, func.length(StoredTrajectory.body) > 0)
        .execution_options(yield_per=100)
    )
    for episode_id, fence, sha256, body, trained in session.execute(query):
        try:
            tokens = int(body_of(body, sha256).mask().sum())
        except MessageError as error:
            yield Finding("lost", "body_unreadable", f"{episode_id} fence {fence}: {error}")
            continue
        if trained is not None and trained != tokens:
            detail = f"{episode_id}: {tokens} tokens, {trained} trained"
            yield Finding("unbalanced", "body_differs", detail)


def _stream(session: Session, run_id: str, rules: AuditRules) -> Iterator[Finding]:
    """Check the item streams: no position is skipped or trained by two valid groups."""
    query = select(Group.task, Group.position, Group.state).where(Group.run_id == run_id)
    rows = session.execute(query).all()
    taken: dict[str, set[int]] = {}
    for task, position, _ in rows:
        taken.setdefault(task, set()).add(position)
    for task, positions in taken.items() if rules.whole_stream else ():
        for place in sorted(set(range(max(positions))) - positions):
            yield Finding("lost", "place_skipped", f"{task} position {place}")
    trained = Counter((task, place) for task, place, state in rows if state == GroupState.TRAINED)
    for (task, place), times in trained.items():
        if times > 1:
            yield Finding("trained_twice", "place_trained_twice", f"{task} position {place}")


def _missing_repeats(session: Session, run_id: str) -> Iterator[Finding]:
    """Check that rolled-back positions are repeated before new ones."""
    waiting = {(place.task, place.position) for place in positions_to_repeat(session, run_id)}
    undone = (
        select(Group.task, Group.position, func.max(Update.trainer_epoch))
        .join(UpdateGroup, UpdateGroup.group_id == Group.group_id)
        .join(Update, Update.update_id == UpdateGroup.update_id)
        .where(Group.run_id == run_id, Group.state == GroupState.ROLLED_BACK)
        .group_by(Group.task, Group.position)
    )
    for task, position, epoch in session.execute(undone).all():
        resumed = select(func.min(Update.started_at)).where(
            Update.run_id == run_id, Update.trainer_epoch > epoch
        )
        newer = select(func.count()).where(
            Group.run_id == run_id,
            Group.round == 0,
            Group.admitted_at > resumed.scalar_subquery(),
        )
        if (task, position) in waiting and session.scalar(newer):
            yield Finding("lost", "place_not_repeated", f"{task} position {position}")


def _trained_twice(session: Session, run_id: str) -> Iterator[Finding]:
    """Find bodies in two updates of a live lineage."""
    query = (
        select(UpdateGroup.sha256, func.count())
        .join(Update, Update.update_id == UpdateGroup.update_id)
        .where(Update.run_id == run_id, Update.is_live)
        .group_by(UpdateGroup.sha256)
        .having(func.count() > 1)
    )
    for sha256, times in session.execute(query):
        yield Finding("trained_twice", "body_trained_twice", f"{sha256[:12]} {times} times")


def _lineage(session: Session, run_id: str) -> Iterator[Finding]:
    """Check that live updates are 1 … the run's version, each the parent of the next."""
    query = (
        select(Update.version, Update.checkpoint_id, Checkpoint.parent_id)
        .join(Checkpoint, Checkpoint.checkpoint_id == Update.checkpoint_id)
        .where(Update.run_id == run_id, Update.is_live)
        .order_by(Update.version, Update.committed_at)
    )
    chain: Sequence[Any] = session.execute(query).all()
    version = session.get_one(Run, run_id, populate_existing=True).version
    versions = [row.version for row in chain]
    if versions != list(range(1, version + 1)):
        yield Finding("unbalanced", "versions_differ", f"the run is at {version}: {versions}")
    for before, after in pairwise(chain):
        if after.parent_id != before.checkpoint_id:
            detail = f"version {after.version} grew from {after.parent_id}"
            yield Finding("unbalanced", "lineage_broken", detail)


def _tokens(session: Session, run_id: str) -> Iterator[Finding]:
    """Check that every trained token lies in a step, and its checkpoint is the run's, or its group
    is a copy. Tokens of steps that do not say whether they are in the loss are not counted.
    """
    tokens = func.coalesce(
        func.sum(case((Step.trained.is_(True), Step.token_end - Step.token_start))), 0
    )
    query = (
        select(UpdateGroup.episode_id, UpdateGroup.loss_tokens, tokens)
        .join(Update, Update.update_id == UpdateGroup.update_id)
        .outerjoin(Step, same_attempt(Step, UpdateGroup))
        .where(Update.run_id == run_id)
        .group_by(UpdateGroup.update_id, UpdateGroup.episode_id, UpdateGroup.loss_tokens)
        .having(func.count(Step.number) == func.count(Step.trained))
        .having(tokens != UpdateGroup.loss_tokens)
    )
    for episode_id, trained, sampled in session.execute(query):
        yield Finding("unbalanced", "tokens_differ", f"{episode_id}: {trained} of {sampled}")
    for episode_id, number in session.execute(text(STRANGERS), {"run_id": run_id}):
        yield Finding("unbalanced", "stranger_sampled", f"{episode_id} step {number}")


STRANGERS = """
SELECT s.episode_id, s.number FROM steps s
JOIN update_groups u ON u.episode_id = s.episode_id AND u.fence = s.fence
JOIN groups g ON g.group_id = u.group_id AND g.origin_id IS NULL
LEFT JOIN checkpoints c ON c.checkpoint_id = s.checkpoint_id AND c.run_id = s.run_id
  AND c.version = s.version
WHERE s.run_id = :run_id AND c.checkpoint_id IS NULL AND s.version >= 0
"""


def _attempts(session: Session, run_id: str, rules: AuditRules) -> Iterator[Finding]:
    """Check that retries are bounded, and that every episode has ended."""
    most = rules.max_attempts
    query = select(Episode.episode_id, Episode.attempts, Episode.state).where(
        Episode.run_id == run_id
    )
    for episode_id, attempts, state in session.execute(query):
        if attempts > most:
            yield Finding("unbalanced", "too_many_attempts", f"{episode_id}: {attempts} of {most}")
        if state in (EpisodeState.QUEUED, EpisodeState.RUNNING):
            yield Finding("lost", "episode_never_ended", f"{episode_id} {state}")
