"""Lists the containers of a run from outside the server that created them."""

from contextlib import closing

import docker
import docker.errors

from agentrl.envs.sandbox.docker_engine import RUN
from agentrl.envs.sandbox.engine_errors import engine_errors

TIMEOUT_S = 20.0


class ContainerInventory:
    """The containers of one run on an engine; DOCKER_HOST selects the engine."""

    def __init__(self, run: str) -> None:
        self._label = f"{RUN}={run}"

    def containers(self, *, all_of_them: bool = False) -> list[str]:
        """Return sorted ids of running containers; `all_of_them`: also of ended ones.

        Raises EnvironmentFailure if no engine answers.
        """
        with (
            engine_errors("list containers"),
            closing(docker.from_env(timeout=TIMEOUT_S)) as client,
        ):
            listed = client.api.containers(all=all_of_them, filters={"label": self._label})
        return sorted(each["Id"] for each in listed)

    def kill(self, container: str) -> bool:
        """Send SIGKILL to its processes; return False if it had already ended."""
        with engine_errors("kill"), closing(docker.from_env(timeout=TIMEOUT_S)) as client:
            try:
                client.api.kill(container)
            except docker.errors.APIError:
                return False
        return True
