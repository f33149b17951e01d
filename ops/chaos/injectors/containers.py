"""Fault: the processes in the container of one environment are killed."""

import random

from agentrl.core.config.config import Config
from agentrl.core.errors import EnvironmentFailure
from agentrl.core.logging import get_logger
from agentrl.envs.sandbox.inventory import ContainerInventory
from agentrl.ops.chaos.fault_course import Course
from agentrl.ops.chaos.observer import RunObserver
from agentrl.ops.supervisor.env_server_host import hosts_envs

log = get_logger()


def kill_container(observer: RunObserver, random: random.Random) -> Course:
    """SIGKILL to what runs in one container, once there is one."""
    inventory = ContainerInventory(observer.cluster.name)
    while True:
        containers = _containers(observer)
        if containers and inventory.kill(random.choice(containers)):
            return
        yield


def uses_containers(config: Config) -> bool:
    """Whether an env server of ours plays episodes in containers."""
    contained = any(
        name == "os" or task.options.get("container") for name, task in config.tasks.items()
    )
    return contained and hosts_envs(config)


def _containers(observer: RunObserver) -> list[str]:
    try:
        return ContainerInventory(observer.cluster.name).containers()
    except EnvironmentFailure as error:
        log.warning("Containers not counted", error=str(error))
        return []
