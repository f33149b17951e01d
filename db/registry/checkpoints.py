"""The checkpoint registry: which checkpoints are valid, and which servers serve them now.

A policy is live while its server's lease is valid and its serving row is open
(`policy_servers.py`).
"""

from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from agentrl.core.types import GROUP_OPEN, CheckpointState
from agentrl.db.models.episodes import Episode, Group, Step
from agentrl.db.models.processes import PolicyServer, Serving
from agentrl.db.models.updates import Checkpoint
from agentrl.db.query_parts import is_live

MESSAGES = "external"  # the engine of a server that speaks messages instead of token ids


@dataclass(frozen=True, slots=True)
class LivePolicy:
    """A checkpoint that a server serves now for a track. `engine`: the server's."""

    server_id: str
    url: str
    track: str
    checkpoint_id: str
    version: int
    engine: str = "local"

    @property
    def exact(self) -> bool:
        """Return whether the policy uses our token ids; otherwise it gets messages."""
        return self.engine != MESSAGES


def live_checkpoints(session: Session, run_id: str) -> list[Checkpoint]:
    """Return the live lineage, oldest version first."""
    query = (
        select(Checkpoint)
        .where(Checkpoint.run_id == run_id, Checkpoint.state == CheckpointState.LIVE)
        .order_by(Checkpoint.version)
    )
    return list(session.scalars(query))


def undeleted_checkpoints(session: Session, run_id: str) -> list[Checkpoint]:
    """Return every checkpoint whose files exist, oldest version first."""
    query = (
        select(Checkpoint)
        .where(
            Checkpoint.run_id == run_id,
            Checkpoint.state.not_in([CheckpointState.DELETED, CheckpointState.EXTERNAL]),
        )
        .order_by(Checkpoint.version)
    )
    return list(session.scalars(query))


def checkpoints_in_use(session: Session, run_id: str) -> set[str]:
    """Return checkpoints in use: served now, or since the oldest attempt of an open group began.

    An evaluation counts as a server. A killed server counts until the dispatcher closes its rows
    (`policy_servers.close_abandoned_servings`).
    """
    served = (
        select(Serving.checkpoint_id)
        .join(PolicyServer, PolicyServer.server_id == Serving.server_id)
        .where(
            Serving.run_id == run_id,
            Serving.live_until.is_(None),
            PolicyServer.ended_at.is_(None),
        )
    )
    oldest = (
        select(func.min(Episode.started_at))
        .join(Group, Group.group_id == Episode.group_id)
        .where(Group.run_id == run_id, Group.state.in_(GROUP_OPEN))
        .scalar_subquery()
    )
    since = select(Serving.checkpoint_id).where(
        Serving.run_id == run_id, Serving.live_until >= oldest
    )
    sampled = (
        select(Step.checkpoint_id)
        .join(Episode, Episode.episode_id == Step.episode_id)
        .join(Group, Group.group_id == Episode.group_id)
        .where(Group.run_id == run_id, Group.state.in_(GROUP_OPEN))
        .distinct()
    )
    return {*session.scalars(served), *session.scalars(since), *session.scalars(sampled)}


def latest_snapshot(session: Session, run_id: str) -> Checkpoint | None:
    """Return the newest live checkpoint with a snapshot."""
    return session.scalars(
        select(Checkpoint)
        .where(
            Checkpoint.run_id == run_id,
            Checkpoint.state == CheckpointState.LIVE,
            Checkpoint.snapshot_path.is_not(None),
        )
        .order_by(Checkpoint.version.desc())
        .limit(1)
    ).first()


def server_problems(session: Session, run_id: str) -> dict[str, str]:
    """Return the problems of live policy servers by name."""
    rows = session.execute(
        select(PolicyServer.name, PolicyServer.problem)
        .where(is_live(PolicyServer, run_id), PolicyServer.problem.is_not(None))
        .order_by(PolicyServer.started_at)
    )
    return {name: problem for name, problem in rows if problem}


def is_serving(session: Session, run_id: str, name: str, since: float) -> bool:
    """Return whether a live policy server of this name, started at `since` or later, serves.

    After an outage also the lease of a killed server is valid for a while (`dispatcher_lease`).
    """
    serving = (
        select(Serving.serving_id)
        .join(PolicyServer, PolicyServer.server_id == Serving.server_id)
        .where(
            is_live(PolicyServer, run_id),
            PolicyServer.name == name,
            PolicyServer.started_at >= since,
            Serving.live_until.is_(None),
        )
    )
    return session.scalars(serving.limit(1)).first() is not None


def live_policies(session: Session, run_id: str) -> list[LivePolicy]:
    """Return the live policies, in the order in which they were first served."""
    query = (
        select(
            PolicyServer.server_id,
            PolicyServer.url,
            Serving.track,
            Serving.checkpoint_id,
            Serving.version,
            PolicyServer.engine,
        )
        .join(Serving, Serving.server_id == PolicyServer.server_id)
        .where(
            is_live(PolicyServer, run_id),
            PolicyServer.url != "",  # an evaluation answers nobody else
            Serving.live_until.is_(None),
        )
        .order_by(Serving.serving_id)
    )
    return [LivePolicy(*row) for row in session.execute(query)]


def set_snapshot_path(session: Session, checkpoint_id: str, path: str) -> None:
    """Record the snapshot of a checkpoint, if the checkpoint is still live."""
    session.execute(
        update(Checkpoint)
        .where(
            Checkpoint.checkpoint_id == checkpoint_id,
            Checkpoint.state == CheckpointState.LIVE,
        )
        .values(snapshot_path=path)
    )


def move_checkpoint(session: Session, checkpoint_id: str, former: str, path: str) -> None:
    """Record another place of a checkpoint's files, if its row still names the former one."""
    session.execute(
        update(Checkpoint)
        .where(Checkpoint.checkpoint_id == checkpoint_id, Checkpoint.path == former)
        .values(path=path)
    )
