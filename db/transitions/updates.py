"""The trainer's queries and commits: ready groups, and one transaction per update."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from agentrl.core.errors import StoreError
from agentrl.core.trained_hash import ROOT, running_hash
from agentrl.core.types import (
    RUN_OVER,
    TRAINABLE,
    CheckpointState,
    EpisodeState,
    GroupState,
    Reason,
    RunState,
    UpdateState,
)
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint, Update, UpdateGroup
from agentrl.db.query_parts import columns_of
from agentrl.db.store import now
from agentrl.db.transitions.groups import close_groups


class UpdateRefused(StoreError):
    """A group has changed since the update trained on it. The trainer resumes from the snapshot."""

    exit_code = 1


class RunEnded(UpdateRefused):
    """The run is over: it takes no update and undoes none."""


class LineageChanged(UpdateRefused):
    """The database does not know the weights from which the update started.

    It lost its last commits (a failover to a lagging replica, a restored backup). The trainer's
    weights contain an update without a row, so the trainer resumes from the snapshot.
    """


class TrainerReplaced(UpdateRefused):
    """Another trainer has started a newer epoch; this one must not commit any more."""

    exit_code = 3  # ops/supervisor/restarts.py REPLACED


@dataclass(frozen=True, slots=True)
class ReadyMember:
    """A finished member, and the only body (fence, hash) of it that may be trained."""

    episode_id: str
    group_id: str
    task: str
    fence: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TeacherScore:
    """A teacher's score of a member's loss tokens. `name`: of its [[teacher]].

    `checkpoint`: its ID, directory or API; `digest`: SHA-256 over its files or, of an API, over the
    scores. `reverse_kl`: mean of log π − log π_teacher, in nats; None: the update recorded no
    log-probabilities.
    """

    name: str
    checkpoint: str
    digest: str
    reverse_kl: float | None


@dataclass(frozen=True, slots=True)
class TrainedMember:
    """A member that an update trained on. `advantage`: of its loss tokens; None: it has none.

    `teacher`: None: no teacher scored it.
    """

    episode_id: str
    group_id: str
    fence: int
    sha256: str
    loss_tokens: int
    advantage: float | None = None
    teacher: TeacherScore | None = None


@dataclass(frozen=True, slots=True)
class NewUpdate:
    """The rows that one transaction writes. `started_at`: seconds on the database's clock.

    `left_out`: groups of its batch that it did not train on.
    """

    update_id: str
    run_id: str
    epoch: int
    state: UpdateState
    reason: str
    checkpoint: Checkpoint
    members: Sequence[TrainedMember]
    metrics: dict[str, Any]
    started_at: float
    left_out: Sequence[str] = ()


def ready_members(session: Session, run_id: str, *, limit: int) -> list[ReadyMember]:
    """Return the trainable members of the oldest `limit` ready groups, group by group."""
    groups = (
        select(Group.group_id, Group.ready_at)
        .where(Group.run_id == run_id, Group.state == GroupState.READY)
        .order_by(Group.ready_at, Group.group_id)
        .limit(limit)
        .subquery()
    )
    query = (
        select(*columns_of(ReadyMember, Episode, sha256=func.coalesce(Episode.body_sha256, "")))
        .join(groups, groups.c.group_id == Episode.group_id)
        .where(Episode.state == EpisodeState.FINISHED, Episode.status.in_(TRAINABLE))
        .order_by(groups.c.ready_at, Episode.group_id, Episode.member)
    )
    return [ReadyMember(*row) for row in session.execute(query)]


def commit_update(session: Session, new: NewUpdate) -> bool:
    """Commit the update with its groups, hashes and checkpoint, atomically.

    Safe to repeat; False: it was already committed. Raises UpdateRefused, RunEnded,
    LineageChanged, TrainerReplaced.
    """
    run = lock_run(session, new.run_id, new.epoch)
    if session.get(Update, new.update_id) is not None:
        return False
    if run.state in RUN_OVER:
        raise RunEnded(f"update {new.update_id}: run {run.name} is over")
    _require_parent(session, run, new)
    group_ids = _close_trained(session, new)
    session.add(new.checkpoint)
    run.version = new.checkpoint.version
    session.flush()
    session.add(
        Update(
            update_id=new.update_id,
            run_id=new.run_id,
            version=new.checkpoint.version,
            trainer_epoch=new.epoch,
            checkpoint_id=new.checkpoint.checkpoint_id,
            state=new.state,
            reason=new.reason,
            groups=len(group_ids),
            episodes=len(new.members),
            loss_tokens=sum(member.loss_tokens for member in new.members),
            metrics=new.metrics,
            started_at=new.started_at,
            committed_at=now(),
        )
    )
    session.flush()
    if left_out := sorted(new.left_out):
        close_groups(session, left_out, GroupState.FILTERED, Reason.LOW_SPREAD, new.update_id)
    session.add_all(
        UpdateGroup(
            update_id=new.update_id,
            episode_id=member.episode_id,
            group_id=member.group_id,
            fence=member.fence,
            sha256=member.sha256,
            loss_tokens=member.loss_tokens,
            advantage=member.advantage,
            **_teacher_columns(member.teacher),
        )
        for member in new.members
    )
    return True


def _teacher_columns(score: TeacherScore | None) -> dict[str, Any]:
    if score is None:
        return {}
    return {
        "teacher": score.name,
        "teacher_checkpoint": score.checkpoint,
        "teacher_digest": score.digest,
        "reverse_kl": score.reverse_kl,
    }


def lock_run(session: Session, run_id: str, epoch: int) -> Run:
    """Lock the run's row for the trainer of its epoch. Raises TrainerReplaced, LineageChanged."""
    run = session.get(Run, run_id, with_for_update=True, populate_existing=True)
    return _require_epoch(run, run_id, epoch)


def run_state(session: Session, run_id: str, epoch: int) -> RunState:
    """Return the run's state to the trainer of its epoch.

    Raises TrainerReplaced, LineageChanged.
    """
    run = session.get(Run, run_id, populate_existing=True)
    return RunState(_require_epoch(run, run_id, epoch).state)


def _require_epoch(run: Run | None, run_id: str, epoch: int) -> Run:
    if run is not None and run.trainer_epoch < epoch:
        raise LineageChanged(
            f"run {run_id}: the database has trainer epoch {run.trainer_epoch}, but this trainer "
            f"started epoch {epoch}: the database has lost commits",
            hint="do nothing: the trainer resumes from the newest snapshot in the database",
        )
    if run is None or run.trainer_epoch != epoch:
        raise TrainerReplaced(
            f"run {run_id}: a newer trainer has taken over", hint="start only one trainer per run"
        )
    return run


def _require_parent(session: Session, run: Run, new: NewUpdate) -> None:
    """Check that the weights were trained from the newest live checkpoint on these bodies.

    Sets the checkpoint's hash if the trainer gave none. Raises LineageChanged.
    """
    checkpoint = new.checkpoint
    parent = session.get(Checkpoint, checkpoint.parent_id or "", populate_existing=True)
    sound = parent is not None and (parent.run_id, parent.state, parent.version, run.version) == (
        new.run_id, CheckpointState.LIVE, checkpoint.version - 1, checkpoint.version - 1
    )  # fmt: skip
    if parent is None or not sound:
        stands = f"{parent.state} at version {parent.version}" if parent else "unknown"
        raise LineageChanged(
            f"update {new.update_id} to version {checkpoint.version}: the run is at version "
            f"{run.version} in the database, and the parent {checkpoint.parent_id} is {stands}",
            hint="do nothing: the trainer resumes from the newest snapshot in the database",
        )
    bodies = [member.sha256 for member in new.members]
    expected = running_hash(parent.trained_hash or ROOT, bodies)
    if checkpoint.trained_hash is None:
        checkpoint.trained_hash = expected
    elif checkpoint.trained_hash != expected:
        raise LineageChanged(
            f"update {new.update_id} to version {checkpoint.version}: the weights were trained "
            f"on other trajectories than version {parent.version} in the database",
            hint="do nothing: the trainer resumes from the newest snapshot in the database",
        )


def _close_trained(session: Session, new: NewUpdate) -> list[str]:
    """ready → trained, if every member still has the trained attempt and body."""
    group_ids = sorted({member.group_id for member in new.members})
    moved = close_groups(session, group_ids, GroupState.TRAINED, None)
    if moved != len(group_ids):
        raise UpdateRefused(
            f"update {new.update_id}: {len(group_ids) - moved} groups are not ready"
        )
    query = select(Episode.episode_id, Episode.fence, Episode.body_sha256).where(
        Episode.group_id.in_(group_ids), Episode.state == EpisodeState.FINISHED
    )
    learned = {(member.episode_id, member.fence, member.sha256) for member in new.members}
    if learned != {tuple(row) for row in session.execute(query)}:
        raise UpdateRefused(
            f"update {new.update_id}: the trajectory of an episode has been replaced"
        )
    return group_ids


def forks(session: Session, run_id: str) -> dict[str, int]:
    """Return the version at which each rolled-back checkpoint left the live lineage."""
    query = (
        select(Checkpoint.checkpoint_id, Checkpoint.parent_id, Checkpoint.version)
        .join(Update, Update.checkpoint_id == Checkpoint.checkpoint_id)
        .where(Update.run_id == run_id, Update.state == UpdateState.ROLLED_BACK)
        .order_by(Checkpoint.version)
    )
    found: dict[str, int] = {}
    for checkpoint_id, parent_id, version in session.execute(query):  # parents come first
        found[checkpoint_id] = found.get(parent_id or "", version - 1)
    return found


def roll_back(session: Session, run_id: str, checkpoint: Checkpoint, *, epoch: int) -> int:
    """Restart from `checkpoint` and roll back later updates. Returns the number of these updates.

    Their groups, also those left out, become rolled_back, and their items return to the stream.
    Raises TrainerReplaced, LineageChanged, and RunEnded, since nothing would replace them.
    """
    run = lock_run(session, run_id, epoch)
    if run.state in RUN_OVER:
        raise RunEnded(f"run {run.name} is over at version {run.version}")
    undone_updates = select(Update.update_id).where(
        Update.run_id == run_id, Update.version > checkpoint.version, Update.is_live
    )
    later = undone_updates.scalar_subquery()
    groups = select(UpdateGroup.group_id).where(UpdateGroup.update_id.in_(later)).distinct()
    trained = Group.group_id.in_(groups) & (Group.state == GroupState.TRAINED)
    session.execute(
        update(Group)
        .where(Group.run_id == run_id, trained | Group.left_out_of.in_(later))
        .values(state=GroupState.ROLLED_BACK, reason=Reason.ROLLED_BACK)
        .execution_options(synchronize_session=False)
    )
    undone = session.scalars(
        update(Update)
        .where(Update.update_id.in_(later))
        .values(state=UpdateState.ROLLED_BACK, reason="rolled back")
        .returning(Update.update_id)
        .execution_options(synchronize_session=False)
    ).all()
    session.execute(
        update(Checkpoint)
        .where(
            Checkpoint.run_id == run_id,
            Checkpoint.version > checkpoint.version,
            Checkpoint.state == CheckpointState.LIVE,
        )
        .values(state=CheckpointState.ROLLED_BACK)
        .execution_options(synchronize_session=False)
    )
    run.version = checkpoint.version
    return len(undone)
