"""What owners leave behind on a real Docker engine, and who removes it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing

import docker
import pytest
from running import ROOT, eventually
from sandbox_programs import SMALL, ask, sandbox

from agentrl.envs.sandbox.container_owner import ContainerOwner
from agentrl.envs.sandbox.docker_engine import LEASE, OWNER, RUN, Engine

Owned = Callable[[], list[str]]

ORPHANS = """
import sys, time
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.program import Program
from agentrl.envs.sandbox.sandbox import Sandbox, Spec
engine = Engine("test", sys.argv[1])
deaf = Sandbox(engine, Spec(sys.argv[2], Program(("sleep", "600"))))
good = Sandbox(engine, Spec(sys.argv[2], Program(("cat",))))
print(deaf.container, good.container, flush=True)
time.sleep(600)
"""


def test_what_a_killed_owner_leaves_ends_by_itself_or_is_reaped(
    engine: Engine, docker_host: str, sandbox_image: str, docker_client: docker.DockerClient
) -> None:
    def there(container: str) -> bool:
        return bool(docker_client.api.containers(all=True, filters={"id": container}))

    command = [sys.executable, "-c", ORPHANS, docker_host, sandbox_image]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        deaf, good = owner.stdout.readline().split()
        engine.reap()
        assert there(deaf)
        assert there(good)
        owner.kill()
    eventually(lambda: not there(good), within_s=60, text=lambda: "too late")
    engine.reap()  # or another test's server did it already
    eventually(lambda: not there(deaf), within_s=60, text=lambda: "too late")


def test_a_container_says_whose_run_and_lease_it_is(
    engine: Engine, sandbox_image: str, docker_client: docker.DockerClient
) -> None:
    with sandbox(engine, sandbox_image) as first, sandbox(engine, sandbox_image) as second:
        labels = [
            docker_client.api.inspect_container(each.container)["Config"]["Labels"]
            for each in (first, second)
        ]
    assert [each[OWNER] for each in labels] == [str(ContainerOwner.this())] * 2
    assert [each[RUN] for each in labels] == ["test"] * 2
    assert labels[0][LEASE] != labels[1][LEASE]


def test_what_no_lease_owns_is_reaped_though_its_owner_lives(
    engine: Engine, docker_host: str, sandbox_image: str, owned: Owned
) -> None:
    with (
        closing(Engine("test", docker_host)) as other,
        sandbox(engine, sandbox_image) as held,
        sandbox(other, sandbox_image) as others,
    ):
        lost = engine.create(sandbox_image, ["sleep", "600"], SMALL)
        engine.reap()
        assert lost in owned()
        engine.forget(lost)
        engine.reap()
        assert set(owned()) == {held.container, others.container}
        assert ask(held, "1 + 1") == ask(others, "1 + 1") == "2"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_kills_of_servers_and_containers_leave_nothing(
    docker_host: str, sandbox_image: str
) -> None:
    command = [sys.executable, ROOT / "benchmarks/sandbox_kills.py", "--image", sandbox_image]
    done = subprocess.run(
        [*command, "--kills", "15", "--seed", "1"],
        env=os.environ | {"DOCKER_HOST": docker_host},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert not done.returncode, done.stderr
    row = json.loads(done.stdout)
    assert row["left"] == row["harmed"] == 0
    assert row["servers_killed"] >= 8
    assert row["episodes"] > 0
