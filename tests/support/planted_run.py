"""A begun run of the tiny policy, in which a test plants ready groups for the real trainer."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
from run_transitions import World

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.types import Status
from agentrl.db.models.processes import Worker
from agentrl.db.store import open_store
from agentrl.db.transitions import runs, updates
from agentrl.db.transitions.updates import TrainedMember
from agentrl.ops.processes import trainer
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

    def learn_twice(self) -> None:
        """Two updates of the real trainer: A, C, D without B, which had no spread; then E and F."""
        self.plant(0, "dbbench", SPREAD)
        self.plant(1, "dbbench", (0.0,) * 4, Status.INVALID_ACTION)
        self.plant(2, "alfworld", (0.0, 0.0, 0.0, 1.0))
        self.plant(3, "dbbench", SPREAD)
        self.plant(4, "dbbench", SPREAD)
        self.plant(5, "alfworld", SPREAD)
        trainer.run(self.config, threading.Event())
        assert self.run().version == 2

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
        new = self.new_update(
            version,
            (),
            self.begin_epoch(),
            members=members,
            metrics={"loss": 0.1},
            started_at=self.store.clock(),
        )
        with self.store.write() as session:
            updates.commit_update(session, new)
