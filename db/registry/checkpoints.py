"""The checkpoint registry: valid checkpoints, the servers that serve them, live policies.

A policy is live while its server's lease is valid and its serving row is open. A serving row is
opened before a server accepts requests for a checkpoint and closed after the last request, so every
token lies inside the serving row of the checkpoint that sampled it.
"""

from dataclasses import dataclass

from sqlalchemy import exists, func, select, update
from sqlalchemy.orm import Session

from agentrl.core.types import GROUP_OPEN, CheckpointState
from agentrl.db.models import Checkpoint, Episode, Group, PolicyServer, Run, Serving, Step
from agentrl.db.store import now

MESSAGES = "external"  # the engine of a server that speaks messages instead of token ids

AWAY_S = 60.0  # how long the lease of a server may have ended before its checkpoints may go


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


def register_checkpoint(session: Session, checkpoint: Checkpoint) -> None:
    """Add a complete checkpoint to the live lineage."""
    session.add(checkpoint)


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

    An evaluation counts as a server. Rows of a killed server count for `AWAY_S`.
    """
    alive = PolicyServer.ended_at.is_(None) & (PolicyServer.lease_until > now() - AWAY_S)
    served = (
        select(Serving.checkpoint_id)
        .join(PolicyServer, PolicyServer.server_id == Serving.server_id)
        .where(Serving.run_id == run_id, Serving.live_until.is_(None), alive)
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


def latest_checkpoint(session: Session, run_id: str) -> Checkpoint | None:
    """Return the newest checkpoint of the live lineage."""
    return session.scalars(
        select(Checkpoint)
        .where(Checkpoint.run_id == run_id, Checkpoint.state == CheckpointState.LIVE)
        .order_by(Checkpoint.version.desc())
        .limit(1)
    ).first()


def find_checkpoint(session: Session, checkpoint_id: str) -> Checkpoint | None:
    """Return the checkpoint of this id in any state."""
    return session.get(Checkpoint, checkpoint_id)


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


def register_server(session: Session, server: PolicyServer, *, lease_s: float) -> None:
    """Register a policy server, which serves nothing yet. Safe to repeat."""
    if session.get(PolicyServer, server.server_id) is not None:
        return
    server.started_at = server.lease_until = session.scalar(select(now())) or 0.0
    server.lease_until += lease_s
    session.add(server)


def beat_server(session: Session, server_id: str, *, lease_s: float, problem: str = "") -> None:
    """Extend the server's lease by `lease_s` seconds. problem: see `PolicyServer`.

    Undoes `close_abandoned_servings` if the server is alive but could not reach the database.
    """
    server = session.get(PolicyServer, server_id, with_for_update=True, populate_existing=True)
    if server is None or server.ended_at is not None:
        return
    clock = session.scalar(select(now())) or 0.0
    if server.lease_until < clock:
        session.execute(
            update(Serving)
            .where(Serving.server_id == server_id, Serving.live_until == server.lease_until)
            .values(live_until=None)
        )
    server.lease_until, server.problem = clock + lease_s, problem or None


def close_abandoned_servings(session: Session, run_id: str) -> None:
    """Close the serving rows of killed servers: no heartbeat for `AWAY_S` after their lease ended.

    They end now, because their last answer is unknown. Their lease is set to the same time, which
    tells `beat_server` what was closed here.
    """
    clock = session.scalar(select(now())) or 0.0
    serves = exists().where(
        Serving.server_id == PolicyServer.server_id, Serving.live_until.is_(None)
    )
    abandoned = session.scalars(
        update(PolicyServer)
        .where(
            PolicyServer.run_id == run_id,
            PolicyServer.ended_at.is_(None),
            PolicyServer.lease_until < clock - AWAY_S,
            serves,
        )
        .values(lease_until=clock)
        .returning(PolicyServer.server_id)
        .execution_options(synchronize_session=False)
    ).all()
    if abandoned:
        session.execute(
            update(Serving)
            .where(Serving.server_id.in_(abandoned), Serving.live_until.is_(None))
            .values(live_until=clock)
            .execution_options(synchronize_session=False)
        )


def server_problems(session: Session, run_id: str) -> dict[str, str]:
    """Return the problems of live policy servers by name."""
    rows = session.execute(
        select(PolicyServer.name, PolicyServer.problem)
        .where(
            PolicyServer.run_id == run_id,
            PolicyServer.ended_at.is_(None),
            PolicyServer.lease_until > now(),
            PolicyServer.problem.is_not(None),
        )
        .order_by(PolicyServer.started_at)
    )
    return {name: problem for name, problem in rows if problem}


def is_serving(session: Session, run_id: str, name: str) -> bool:
    """Return whether a live policy server of this name serves a checkpoint."""
    serving = (
        select(Serving.serving_id)
        .join(PolicyServer, PolicyServer.server_id == Serving.server_id)
        .where(
            PolicyServer.run_id == run_id,
            PolicyServer.name == name,
            PolicyServer.lease_until > now(),
            Serving.live_until.is_(None),
        )
    )
    return session.scalars(serving.limit(1)).first() is not None


def end_server(session: Session, server_id: str) -> None:
    """End a server that has drained."""
    session.execute(
        update(Serving)
        .where(Serving.server_id == server_id, Serving.live_until.is_(None))
        .values(live_until=now())
    )
    session.execute(
        update(PolicyServer)
        .where(PolicyServer.server_id == server_id)
        .values(ended_at=now(), lease_until=now())
    )


def begin_exchange(session: Session, server_id: str, track: str) -> bool:
    """Return whether the server may stop serving the track to exchange its weights in place.

    Only one live server of a track may at a time. Safe to repeat.
    """
    server = session.get_one(PolicyServer, server_id)
    session.get_one(Run, server.run_id, with_for_update=True)  # servers ask one after another
    others = select(PolicyServer.server_id).where(
        PolicyServer.run_id == server.run_id,
        PolicyServer.server_id != server_id,
        PolicyServer.exchanging == track,
        PolicyServer.lease_until > now(),
    )
    if session.scalars(others.limit(1)).first() is not None:
        return False
    server.exchanging = track
    return True


def end_exchange(session: Session, server_id: str) -> None:
    """Allow the next server to exchange its weights."""
    session.execute(
        update(PolicyServer).where(PolicyServer.server_id == server_id).values(exchanging=None)
    )


def begin_serving(session: Session, server_id: str, track: str, checkpoint: Checkpoint) -> None:
    """Open a serving row: from now on the server accepts requests for the verified checkpoint."""
    session.add(
        Serving(
            server_id=server_id,
            run_id=checkpoint.run_id,
            track=track,
            checkpoint_id=checkpoint.checkpoint_id,
            version=checkpoint.version,
            live_from=now(),
        )
    )


def end_serving(session: Session, server_id: str, track: str, checkpoint_id: str) -> None:
    """Close a serving row: the server has drained the checkpoint."""
    session.execute(
        update(Serving)
        .where(
            Serving.server_id == server_id,
            Serving.track == track,
            Serving.checkpoint_id == checkpoint_id,
            Serving.live_until.is_(None),
        )
        .values(live_until=now())
    )


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
            PolicyServer.run_id == run_id,
            PolicyServer.url != "",  # an evaluation answers nobody else
            PolicyServer.ended_at.is_(None),
            PolicyServer.lease_until > now(),
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
