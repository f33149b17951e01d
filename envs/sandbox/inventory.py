"""Lists the containers of a run from outside the server that created them."""

from contextlib import closing

import docker
import docker.errors
import requests

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.sandbox.docker_engine import RUN

TIMEOUT_S = 20.0


class ContainerInventory:
    """What an engine holds of one run; DOCKER_HOST names the engine."""

    def __init__(self, run: str) -> None:
        self._label = f"{RUN}={run}"

    def containers(self, *, all_of_them: bool = False) -> list[str]:
        """Ids of those that run, sorted; `all_of_them`: also those that ended.

        Raises EnvironmentFailure where no engine answers.
        """
        try:
            with closing(docker.from_env(timeout=TIMEOUT_S)) as client:
                listed = client.api.containers(all=all_of_them, filters={"label": self._label})
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise EnvironmentFailure(f"Docker engine: cannot list containers: {error}") from error
        return sorted(each["Id"] for each in listed)

    def kill(self, container: str) -> bool:
        """SIGKILL to its processes; False where it ended first."""
        try:
            with closing(docker.from_env(timeout=TIMEOUT_S)) as client:
                client.api.kill(container)
        except docker.errors.APIError:
            return False
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise EnvironmentFailure(f"Docker engine: cannot kill a container: {error}") from error
        return True
