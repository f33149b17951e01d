"""A store with a history, made by the transitions that workers and trainers use."""

import uuid
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy.orm import Session
from trajectories import trajectory

from agentrl.broker.messages import EpisodeFinished, encode
from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.types import CheckpointState, RunState, Status, UpdateState
from agentrl.db.admin import migrate
from agentrl.db.models.evaluations import Evaluation
from agentrl.db.models.processes import PolicyServer, Worker
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints, policy_servers
from agentrl.db.store import Store, now, open_store, read_clock
from agentrl.db.transitions import due_episodes, episodes, groups, runs, updates
from agentrl.db.transitions.episodes import EpisodeResult
from agentrl.db.transitions.groups import NewGroup
from agentrl.db.transitions.trajectories import bodies
from agentrl.db.transitions.updates import NewUpdate, TrainedMember

TASKS = ("alfworld", "dbbench")
SIZE = 4


def begun(url: str, name: str = "run", config: Config | None = None) -> tuple[Store, str]:
    """Return a migrated store with one running run and its version 0."""
    store = open_store(url)
    migrate.upgrade(store)
    run_id = f"{name}-{uuid.uuid4().hex[:6]}"
    with store.write() as session:
        session.add(
            Run(
                run_id=run_id,
                name=name,
                config=config_loading.dumps(config) if config else "{}",
                seed=0,
                state=RunState.RUNNING,
                created_at=now(),
            )
        )
        session.flush()
        session.add(_checkpoint(run_id, 0))
    return store, run_id


def serving(store: Store, run_id: str) -> str:
    """A live policy server with two tracks on version 0; its id."""
    server_id = f"policy-{run_id}"
    row = PolicyServer(
        server_id=server_id, run_id=run_id, name="policy", engine="local", url="http://127.0.0.1:1"
    )
    with store.write() as session:
        policy_servers.register_server(session, row, lease_s=3600.0)
        session.flush()
        first = checkpoints.live_checkpoints(session, run_id)[0]
        for track in ("current", "lagged(4)"):
            policy_servers.begin_serving(session, server_id, track, first)
    return server_id


def ended(store: Store, run_id: str) -> None:
    """Complete the run and close its server."""
    with store.write() as session:
        policy_servers.end_server(session, f"policy-{run_id}")
        runs.move_run(session, run_id, RunState.COMPLETED, "enough updates")


def trained(store: Store, run_id: str, versions: int) -> None:
    """So many updates of a served run, each of one group a task; success grows with the version."""
    serving(store, run_id)
    worker_id = f"worker-{run_id}"
    with store.write() as session:
        worker = Worker(worker_id=worker_id, run_id=run_id, host="here", pid=1)
        runs.register_worker(session, worker, lease_s=3600.0)
    epoch = store.transact(lambda session: runs.begin_epoch(session, run_id))
    for version in range(1, versions + 1):
        with store.write() as session:
            members = _groups(session, run_id, version, versions, worker_id)
            updates.commit_update(session, _update(run_id, version, epoch, members))
    with store.write() as session:
        runs.end_worker(session, worker_id)


def _groups(
    session: Session, run_id: str, version: int, versions: int, worker_id: str
) -> list[TrainedMember]:
    run = session.get_one(Run, run_id)
    new = [
        NewGroup(f"{run_id}-{task}-{version}", task, version, 0, f"item-{version}", SIZE)
        for task in TASKS
    ]
    groups.admit_groups(session, run, new)
    session.flush()
    due = due_episodes.due_to_send(session, run_id, claim_timeout_s=60.0)
    wins = round(SIZE * version / versions)
    return [_member(session, run_id, key, wins, worker_id) for key in due]


def _member(
    session: Session, run_id: str, key: tuple[str, int], wins: int, worker_id: str
) -> TrainedMember:
    episode_id, fence = key
    claimed = episodes.claim(session, episode_id, fence, worker_id, deadline_s=60.0)
    assert claimed is not None
    score = float(claimed.member < wins)
    plain = trajectory(run_id, spans=((15, 5), (15, 5)))
    acted = msgspec.structs.replace(
        plain, episode_id=episode_id, fence=fence, reward=score, score=score
    )
    sha256 = acted.sha256
    result = EpisodeResult(Status.COMPLETED, score, score, 2, 40, 10, sha256)
    assert episodes.finish(session, claimed, result, body_timeout_s=60.0)
    body: dict[str, Any] = {
        "episode_id": episode_id,
        "fence": fence,
        "run_id": run_id,
        "sha256": sha256,
    }
    clock = read_clock(session)
    steps = [_step(run_id, episode_id, fence, number) for number in range(2)]
    steps = [step | {"requested_at": clock} for step in steps]
    wire = encode(EpisodeFinished(trajectory=acted))
    body |= {"body": wire, "received_at": 0.0, "started_at": claimed.started_at}
    bodies.store_bodies(session, [body], steps)
    return TrainedMember(episode_id, claimed.group_id, fence, sha256, 10)


def _step(run_id: str, episode_id: str, fence: int, number: int) -> dict[str, object]:
    return {
        "episode_id": episode_id,
        "fence": fence,
        "number": number,
        "run_id": run_id,
        "server_id": f"policy-{run_id}",
        "track": ("current", "lagged(4)")[number],
        "checkpoint_id": f"{run_id}-v000000",
        "version": 0,
        "temperature": 1.0,
        "prompt_tokens": 15,
        "token_start": 15,
        "token_end": 20,
        "trained": True,
        "policy_s": 0.1,
        "env_s": 0.01,
        "finish_reason": "stop",
        "call": "[]",
        "answer": "done",
    }


def _update(run_id: str, version: int, epoch: int, members: list[TrainedMember]) -> NewUpdate:
    return NewUpdate(
        update_id=f"{run_id}-u{version}",
        run_id=run_id,
        epoch=epoch,
        state=UpdateState.COMMITTED,
        reason="",
        checkpoint=_checkpoint(run_id, version),
        members=members,
        metrics={"loss": 0.1 / version, "entropy": 1.5, "grad_norm": 0.3},
        started_at=0.0,
    )


def _checkpoint(run_id: str, version: int) -> Checkpoint:
    checkpoint_id = f"{run_id}-v{version:06d}"
    return Checkpoint(
        checkpoint_id=checkpoint_id,
        run_id=run_id,
        version=version,
        parent_id=f"{run_id}-v{version - 1:06d}" if version else None,
        path=str(Path("checkpoints") / checkpoint_id),
        state=CheckpointState.LIVE,
        created_at=now(),
    )


def evaluation(run_id: str, version: int | None, **given: Any) -> Evaluation:
    """A row of an evaluation of that version (null: of what is no version), half solved.

    `given`: columns that are otherwise.
    """
    row: dict[str, Any] = {
        "evaluation_id": f"e{version}",
        "run_id": run_id,
        "checkpoint_id": f"{run_id}-v{version or 0:06d}",
        "version": version,
        "task": "kg",
        "split": "test",
        "temperature": 0.0,
        "items": 10,
        "episodes": 10,
        "success": 0.5,
        "low": 0.24,
        "high": 0.76,
        "metrics": {},
        "created_at": now(),
    }
    return Evaluation(**row | given)
