"""An engine of its own for each test; nothing of it may be left on the machine."""

from collections.abc import Callable, Iterator

import docker
import pytest
from running import eventually

from agentrl.envs.sandbox.container_owner import ContainerOwner
from agentrl.envs.sandbox.docker_engine import OWNER, Engine

Owned = Callable[[], list[str]]


@pytest.fixture
def owned(docker_client: docker.DockerClient) -> Owned:
    """The containers that this process owns."""
    label = f"{OWNER}={ContainerOwner.this()}"

    def listed() -> list[str]:
        found = docker_client.api.containers(all=True, filters={"label": label})
        return [each["Id"] for each in found]

    return listed


@pytest.fixture
def engine(docker_host: str, owned: Owned) -> Iterator[Engine]:
    engine = Engine("test", docker_host)
    yield engine
    try:
        eventually(lambda: not owned(), within_s=60, text=lambda: f"left: {owned()}")
    finally:
        for container in owned():
            engine.remove(container)
        engine.close()
