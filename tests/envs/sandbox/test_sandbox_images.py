"""The images of deploy/images, built from the base that the tests have, without a network."""

from collections.abc import Iterator
from contextlib import contextmanager

import docker
import pytest
from running import ROOT
from sandbox_programs import ask, root_pool, run, sandbox

from agentrl.envs.sandbox.docker_engine import Engine

IMAGES = ROOT / "deploy/images"


@contextmanager
def built(client: docker.DockerClient, name: str, **arguments: str) -> Iterator[str]:
    tag = f"agentrl-test-alone-{name}"
    client.images.build(
        path=str(IMAGES),
        dockerfile=f"{name}.Dockerfile",
        buildargs=arguments,
        network_mode="none",
        tag=tag,
        rm=True,
    )
    try:
        yield tag
    finally:
        client.images.remove(tag)


@pytest.mark.slow
def test_the_image_of_sandboxes_runs_as_nobody(
    engine: Engine, sandbox_image: str, docker_client: docker.DockerClient
) -> None:
    with (
        built(docker_client, "sandbox", BASE=sandbox_image) as image,
        sandbox(engine, image) as held,
    ):
        assert ask(held, "os.getuid()") == "65534"


@pytest.mark.slow
def test_the_image_of_the_os_task_has_a_shell_and_its_tools(
    engine: Engine, sandbox_image: str, docker_client: docker.DockerClient
) -> None:
    with (
        built(docker_client, "os", BASE=sandbox_image, INSTALL="0") as image,
        root_pool(engine, image) as pool,
    ):
        held = pool.lease()
        assert run(held, "pwd; seq 3 | awk '{s += $1} END {print s}'") == (0, "/root\n6\n")
        pool.release(held, sound=True)
