"""A store with one run, and the moves that dispatchers, workers, recorders and trainers make."""

import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
from sqlalchemy import text
from trajectories import body_of, trajectory

from agentrl.broker.api import Delivery
from agentrl.broker.messages import EpisodeFinished, encode
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import CheckpointState, EpisodeState, RunState, Status, UpdateState
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.models.processes import PolicyServer, Worker
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint, Update
from agentrl.db.registry.policy_servers import begin_serving, register_server
from agentrl.db.store import Store, now
from agentrl.db.transitions import episodes, groups, runs, updates
from agentrl.db.transitions.episodes import ClaimedEpisode, EpisodeResult
from agentrl.db.transitions.groups import NewGroup
from agentrl.db.transitions.updates import NewUpdate, TrainedMember
from agentrl.workers import recorder

T = TypeVar("T")
SIZE = 4


@dataclass
class World:
    """One running run at version 0, with a live worker and a server of two tracks."""

    store: Store
    run_id: str
    worker_id: str

    @classmethod
    def begin(cls, store: Store, name: str = "run") -> "World":
        run_id = f"{name}-{uuid.uuid4().hex[:6]}"
        world = cls(store, run_id, f"worker-{run_id}")
        with store.write() as session:
            session.add(
                Run(
                    run_id=run_id,
                    name=name,
                    config="{}",
                    seed=0,
                    state=RunState.RUNNING,
                    created_at=now(),
                )
            )
            session.flush()
            first = world.checkpoint(0)
            session.add(first)
            worker = Worker(worker_id=world.worker_id, run_id=run_id, host="here", pid=1)
            runs.register_worker(session, worker, lease_s=60.0)
            server = PolicyServer(
                server_id=f"policy-{run_id}",
                run_id=run_id,
                name="p",
                engine="local",
                url="http://p",
            )
            register_server(session, server, lease_s=60.0)
            session.flush()
            for track in ("current", "lagged(4)"):
                begin_serving(session, server.server_id, track, first)
        return world

    def checkpoint(self, version: int, **values: Any) -> Checkpoint:
        """A row that grew from the live version before it."""
        query = (
            "SELECT checkpoint_id FROM checkpoints WHERE run_id = :r AND version = :v"
            " AND state = 'live'"
        )
        before = self.ask(query, r=self.run_id, v=version - 1) if version else []
        values.setdefault("parent_id", before[0][0] if before else None)
        return Checkpoint(
            checkpoint_id=f"{self.run_id}-v{version}",
            run_id=self.run_id,
            version=version,
            path="nowhere",
            state=CheckpointState.LIVE,
            created_at=now(),
            **values,
        )

    def admit(self, *positions: int, size: int = SIZE, task: str = "dbbench") -> list[str]:
        """Open groups at the positions; their ids."""
        new = [
            NewGroup(f"{self.run_id}-{task}-{place}", task, place, 0, f"item-{place}", size)
            for place in positions
        ]
        with self.store.write() as session:
            groups.admit_groups(session, session.get_one(Run, self.run_id), new)
        return [group.group_id for group in new]

    def claim(
        self, episode_id: str, fence: int = 1, *, deadline_s: float = 60.0
    ) -> ClaimedEpisode | None:
        return self.store.transact(
            lambda session: episodes.claim(
                session, episode_id, fence, self.worker_id, deadline_s=deadline_s
            )
        )

    def claimed(self, group_id: str) -> list[ClaimedEpisode]:
        """Every queued member, claimed by the worker."""
        rows = [row for row in self.members(group_id) if row.state == EpisodeState.QUEUED]
        found = [self.claim(row.episode_id, row.fence) for row in rows]
        return [claimed for claimed in found if claimed is not None]

    def body(self, claimed: ClaimedEpisode, reward: float = 0.0) -> Trajectory:
        """What the attempt would publish."""
        plain, asked = trajectory(self.run_id), self.store.clock()
        policy = {"checkpoint_id": f"{self.run_id}-v0", "version": 0}
        return body_of(
            claimed,
            plain,
            policy | {"server_id": f"policy-{self.run_id}"},
            task=claimed.task,
            item_id=claimed.item_id,
            reward=reward,
            score=reward,
            steps=tuple(msgspec.structs.replace(s, requested_at=asked) for s in plain.steps),
        )

    def caught_up(self) -> None:
        """The recorder says that all that was published till now is stored."""
        self.sql("UPDATE runs SET recorded_until = 1e12 WHERE run_id = :r", r=self.run_id)

    def finish(
        self, claimed: ClaimedEpisode, body: Trajectory, *, body_timeout_s: float = 60.0
    ) -> bool:
        """Move the row to finished, as a worker does after it published the body."""
        sha256, reward = body.sha256, body.reward
        result = EpisodeResult(Status.COMPLETED, reward, reward, 2, len(body), 9, sha256)
        return self.store.transact(
            lambda session: episodes.finish(session, claimed, result, body_timeout_s=body_timeout_s)
        )

    def keep(self, bodies: Sequence[Trajectory]) -> None:
        """Store bodies, as the recorder does."""
        messages = [EpisodeFinished(trajectory=body) for body in bodies]
        recorder.keep_bodies(
            self.store, self.run_id, [Delivery(each, encode(each), 0) for each in messages]
        )

    def ready(
        self, position: int, rewards: Sequence[float] = (0.0, 1.0, 0.0, 1.0), *, stored: bool = True
    ) -> list[Trajectory]:
        """A group whose every member has finished; its bodies."""
        (group_id,) = self.admit(position, size=len(rewards))
        claims = self.claimed(group_id)
        bodies = [self.body(c, reward) for c, reward in zip(claims, rewards, strict=True)]
        for claimed, body in zip(claims, bodies, strict=True):
            assert self.finish(claimed, body)
        if stored:
            self.keep(bodies)
        return bodies

    def begin_epoch(self) -> int:
        return self.store.transact(lambda session: runs.begin_epoch(session, self.run_id))

    def new_update(
        self,
        version: int,
        bodies: Sequence[Trajectory],
        epoch: int,
        *,
        advantage: float | None = None,
        **values: Any,
    ) -> NewUpdate:
        """A committed update that trained on the bodies, but for other values."""
        members = [
            TrainedMember(b.episode_id, b.group_id, b.fence, b.sha256, 9, advantage) for b in bodies
        ]
        name, committed = f"{self.run_id}-u{version}", UpdateState.COMMITTED
        checkpoint = self.checkpoint(version)
        plain = NewUpdate(name, self.run_id, epoch, committed, "", checkpoint, members, {}, 0.0)
        return replace(plain, **values)

    def learn(
        self, version: int, bodies: Sequence[Trajectory], advantage: float | None = None
    ) -> None:
        """Commit an update, as a trainer does that has just begun."""
        new = self.new_update(version, bodies, self.begin_epoch(), advantage=advantage)
        self.store.transact(lambda session: updates.commit_update(session, new))

    def add_update(self, version: int, **values: Any) -> None:
        """Add only the row of an update."""
        row = {
            "update_id": f"{self.run_id}-u{version}",
            "run_id": self.run_id,
            "version": version,
            "trainer_epoch": 1,
            "checkpoint_id": f"{self.run_id}-v0",
            "state": UpdateState.COMMITTED,
            "groups": 1,
            "episodes": 4,
            "loss_tokens": 8,
            "metrics": {},
            "started_at": 0.0,
            "committed_at": 1.0,
        }
        with self.store.write() as session:
            session.add(Update(**row | values))

    def episode(self, episode_id: str) -> Episode:
        with self.store.read() as session:
            row = session.get_one(Episode, episode_id)
            session.expunge(row)
            return row

    def group(self, group_id: str) -> Group:
        with self.store.read() as session:
            row = session.get_one(Group, group_id)
            session.expunge(row)
            return row

    def members(self, group_id: str) -> list[Episode]:
        with self.store.read() as session:
            size = session.get_one(Group, group_id).size
        return [self.episode(f"{group_id}-{member}") for member in range(size)]

    def run(self) -> Run:
        with self.store.read() as session:
            row = session.get_one(Run, self.run_id)
            session.expunge(row)
            return row

    def sql(self, statement: str, **values: Any) -> None:
        """Plant something that no transition would do."""
        with self.store.write() as session:
            session.execute(text(statement), values)

    def ask(self, statement: str, **values: Any) -> list[Any]:
        with self.store.read() as session:
            return [tuple(row) for row in session.execute(text(statement), values)]

    def after(self, planted: str, question: str, **values: Any) -> list[Any]:
        """The answer with statements planted (`;` between them), which are then undone."""
        with self.store.engine.connect() as connection:
            for statement in planted.split(";"):
                named = {n: v for n, v in values.items() if f":{n}" in statement}
                connection.execute(text(statement), named)
            answer = [tuple(row) for row in connection.execute(text(question))]
            connection.rollback()
        return answer

    def accounting(self) -> list[str]:
        """The kinds of all disagreements."""
        return sorted(kind for (kind,) in self.ask("SELECT kind FROM accounting"))


def run_concurrently(*works: Callable[[], T]) -> list[T]:
    """Start works at the same moment, each in a thread; return their answers."""
    gate = threading.Barrier(len(works))

    def begin(work: Callable[[], T]) -> T:
        gate.wait(60)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(begin, works))
