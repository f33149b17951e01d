import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run_transitions import World
from running import ROOT
from store_outage import Outage, forbid_waiting
from structlog.testing import capture_logs

from agentrl.core.errors import CheckpointError
from agentrl.core.types import CheckpointState
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints, policy_servers
from agentrl.db.store import Store
from agentrl.ops.evaluation.checkpoint_lease import hold_checkpoint
from agentrl.ops.evaluation.target import Target
from agentrl.trainer.retention import RetentionRules, retain

HOLDER = """
import sys, time
from pathlib import Path
from agentrl.ops.evaluation.target import Target
from agentrl.db.store import open_store
from agentrl.ops.evaluation.checkpoint_lease import hold_checkpoint
with hold_checkpoint(open_store(sys.argv[1]), Target(Path("."), sys.argv[2], sys.argv[3], 1)):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def world(store: Store) -> World:
    """At version 6, and only version 6 served."""
    world = World.begin(store)
    with store.write() as session:
        for version in range(1, 7):
            session.add(world.checkpoint(version, snapshot_path="s" if version == 6 else None))
        policy_servers.end_server(session, f"policy-{world.run_id}")
    return world


def kept(world: World) -> list[int]:
    """The versions whose files would stay."""
    with world.store.write() as session:
        retain(session, world.run_id, RetentionRules(keep=1, tracks=["current"], epoch=0))
    rows = world.ask("SELECT version FROM checkpoints WHERE state = 'live' ORDER BY version")
    world.sql("UPDATE checkpoints SET state = 'live', snapshot_path = NULL")
    world.sql("UPDATE checkpoints SET snapshot_path = 's' WHERE version = 6")
    return [version for (version,) in rows]


def url(store: Store) -> str:
    return store.url


def target(world: World, version: int) -> Target:
    return Target(Path(), f"{world.run_id}-v{version}", world.run_id, version)


def test_what_is_measured_stays_until_the_measurement_ends(world: World) -> None:
    assert kept(world) == [0, 6]
    with hold_checkpoint(world.store, target(world, 2)):
        assert kept(world) == [0, 2, 6]
        live = world.store.ask(lambda session: checkpoints.live_policies(session, world.run_id))
        assert live == []
    assert kept(world) == [0, 6]


def test_a_directory_is_not_held(world: World) -> None:
    before = world.ask("SELECT COUNT(*) FROM policy_servers")
    with hold_checkpoint(world.store, Target(Path(), "some-model")):
        assert world.ask("SELECT COUNT(*) FROM policy_servers") == before


def test_a_checkpoint_that_is_gone_is_refused(world: World) -> None:
    with world.store.write() as session:
        row = session.get_one(Checkpoint, f"{world.run_id}-v2")
        row.state = CheckpointState.DELETED
    with (
        pytest.raises(CheckpointError, match=r"-v2 was deleted"),
        hold_checkpoint(world.store, target(world, 2)),
    ):
        pass


def test_what_ended_a_measurement_is_told_and_not_that_the_store_is_away(world: World) -> None:
    outage = Outage(world.store)
    forbid_waiting(world.store)

    def measure() -> None:
        with hold_checkpoint(world.store, target(world, 2)):
            outage.begin()
            raise KeyError("the engine")

    with capture_logs() as lines, pytest.raises(KeyError, match="the engine"):
        measure()
    outage.end()
    assert lines[-1]["event"] == "Checkpoint lease not released; it expires by itself"


def test_an_evaluation_that_is_killed_holds_for_a_while_only(world: World) -> None:
    name, run_id = target(world, 2).checkpoint_id, world.run_id
    command = [sys.executable, "-c", HOLDER, url(world.store), name, run_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert kept(world) == [0, 2, 6]
        os.kill(process.pid, signal.SIGKILL)
    assert kept(world) == [0, 2, 6]
    assert world.ask("SELECT live_until FROM servings WHERE version = 2") == [(None,)]
    world.sql("UPDATE policy_servers SET lease_until = lease_until - 50 - 60 WHERE url = ''")
    assert kept(world) == [0, 2, 6]  # after an outage it may be alive; the dispatcher decides
    world.store.transact(lambda s: policy_servers.close_abandoned_servings(s, run_id))
    assert kept(world) == [0, 6]


def test_what_an_open_trajectory_may_have_been_sampled_from_stays(world: World) -> None:
    """Served when its attempt began, and retired since; its steps are told at its end only."""
    [group] = world.admit(0)
    server = f"policy-{world.run_id}"
    world.sql("UPDATE policy_servers SET ended_at = NULL, lease_until = lease_until + 60")

    def serve(version: int) -> None:
        with world.store.write() as session:
            row = session.get_one(Checkpoint, f"{world.run_id}-v{version}")
            policy_servers.begin_serving(session, server, "current", row)

    def retire(version: int) -> None:
        with world.store.write() as session:
            name = f"{world.run_id}-v{version}"
            policy_servers.end_serving(session, server, "current", name)

    serve(1)
    retire(1)
    world.sql("UPDATE servings SET live_from = live_from - 9, live_until = live_until - 9")
    assert len(world.claimed(group)) == 4
    serve(2)
    retire(2)
    assert kept(world) == [0, 2, 6]
    world.sql("UPDATE groups SET state = 'stale'")
    assert kept(world) == [0, 6]
