"""A begun run of the tiny policy, in which a test plants ready groups for the real trainer."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
from run_transitions import World

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.types import CheckpointState, Status, UpdateState
from agentrl.db.models import Checkpoint, Worker
from agentrl.db.store import now, open_store
from agentrl.db.transitions import runs, updates
from agentrl.db.transitions.updates import NewUpdate, TrainedMember
from agentrl.ops.runs.begin import begin

TINY = Path(__file__).parents[2] / "models" / "tiny"
FILE = """
[run]
name = "learned"
home = "{home}"
stop_updates = 2
[store]
url = "{store}"
[model]
path = "{tiny}"
[sampling]
max_tokens = 64
[dispatch]
max_staleness = 1
[trainer]
learning_rate = 0.05
min_groups = 2
max_groups = 3
task_norm_min_tokens = 4
[tasks.dbbench]
[tasks.alfworld]
"""
SPREAD = (0.0, 1.0, 0.0, 1.0)


class PlantedRun(World):
    path: Path
    config: Config

    @classmethod
    @contextmanager
    def begun(cls, folder: Path, store: str = "embedded") -> "Iterator[PlantedRun]":
        path = folder / "run.toml"
        path.write_text(FILE.format(home=folder / "home", store=store, tiny=TINY))
        config = config_loading.load(path)
        run_id = begin(config)
        with closing(open_store(config.store_url())) as opened:
            world = cls(opened, run_id, f"worker-{run_id}")
            world.path, world.config = path, config
            worker = Worker(worker_id=world.worker_id, run_id=run_id, host="here", pid=1)
            opened.transact(lambda session: runs.register_worker(session, worker, lease_s=600.0))
            yield world

    def plant(
        self,
        position: int,
        task: str,
        rewards: Sequence[float],
        status: Status = Status.COMPLETED,
        version: int = 0,
    ) -> str:
        """A ready group, sampled by a version; its first member ended as `status`. Its id."""
        (group_id,) = self.admit(position, task=task)
        claims = self.claimed(group_id)
        bodies = [self.body(c, reward) for c, reward in zip(claims, rewards, strict=True)]
        policies = tuple(
            msgspec.structs.replace(
                policy, checkpoint_id=f"{self.run_id}-v{version}", version=version
            )
            for policy in bodies[0].policies
        )
        bodies = [msgspec.structs.replace(body, policies=policies) for body in bodies]
        bodies[0] = msgspec.structs.replace(bodies[0], status=status)
        for claimed, body in zip(claims, bodies, strict=True):
            assert self.finish(claimed, body)
        self.keep(bodies)
        return group_id

    def commit(self, version: int, *group_ids: str) -> None:
        """An update that trained on the groups, as a trainer commits it, without weights."""
        members = [
            TrainedMember(row.episode_id, row.group_id, row.fence, row.body_sha256 or "", 9)
            for group_id in group_ids
            for row in self.members(group_id)
        ]
        [(parent,)] = self.ask(
            "SELECT checkpoint_id FROM checkpoints WHERE run_id = :r AND version = :v",
            r=self.run_id,
            v=version - 1,
        )
        row = {
            "checkpoint_id": f"{self.run_id}-v{version}",
            "run_id": self.run_id,
            "version": version,
            "parent_id": parent,
            "path": "nowhere",
            "state": CheckpointState.LIVE,
        }
        epoch = self.store.transact(lambda session: runs.begin_epoch(session, self.run_id))
        with self.store.write() as session:
            new = NewUpdate(
                update_id=f"{self.run_id}-u{version}",
                run_id=self.run_id,
                epoch=epoch,
                state=UpdateState.COMMITTED,
                reason="",
                checkpoint=Checkpoint(**row, created_at=now()),
                members=members,
                metrics={"loss": 0.1},
                started_at=0.0,
            )
            updates.commit_update(session, new)
