"""Checks each [[teacher]] of a configuration, without the store."""

from collections import Counter
from pathlib import Path

from agentrl.checkpoints import manifest
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError, require_known
from agentrl.serving.engines import EXTERNAL


def check_teachers(config: Config) -> None:
    """Check names, tasks and directories of teachers, and that something teaches every task.

    Raises ConfigError. A checkpoint of the store is looked for when the trainer starts.
    """
    names = Counter(teacher.name for teacher in config.teacher)
    for name, number in names.items():
        if number > 1:
            raise ConfigError(f"teacher.name: {number} teachers are named {name}")
    teachers: dict[str, str] = {}
    for teacher in config.teacher:
        for task in teacher.tasks or config.tasks:
            require_known(f"teacher.tasks of {teacher.name}", task, config.tasks)
            if task in teachers:
                raise ConfigError(
                    f"teacher.tasks: {teachers[task]} and {teacher.name} both teach {task}",
                    hint="give each task one teacher",
                )
            teachers[task] = teacher.name
        key = f"teacher.checkpoint of {teacher.name}"
        if policy := teacher.policy():
            _check_policy(key, policy, config)
        else:
            _check_checkpoint(key, teacher.checkpoint)
    untaught = sorted(config.tasks.keys() - teachers.keys())
    if untaught and not config.trainer.rewards:
        raise ConfigError(
            f"trainer.rewards = false: nothing teaches {', '.join(untaught)}",
            hint="add a [[teacher]] for it, or remove the key",
        )


def _check_policy(key: str, name: str, config: Config) -> None:
    servers = {server.name: server for server in config.policy_servers()}
    require_known(key, name, servers)
    if servers[name].engine != EXTERNAL:
        raise ConfigError(
            f"{key}: {name} is not an external policy",
            hint='name a [[policy]] with engine = "external"',
        )


def _check_checkpoint(key: str, checkpoint: str) -> None:
    if checkpoint.endswith("@latest"):
        raise ConfigError(
            f"{key}: {checkpoint} changes while its run goes on",
            hint="name a version: RUN@VERSION",
        )
    if checkpoint.startswith(("hub:", "external(")) or not checkpoint:
        raise ConfigError(
            f"{key}: {checkpoint or 'it'} is not a checkpoint",
            hint="name a directory, a checkpoint ID, RUN@VERSION or external(NAME)",
        )
    files = [Path(checkpoint) / name for name in ("config.json", manifest.ADAPTER)]
    if "/" in checkpoint and not any(file.is_file() for file in files):
        raise ConfigError(
            f"{key}: {Path(checkpoint).resolve()} contains no model",
            hint=f"name a directory with {' or '.join(file.name for file in files)}, a checkpoint "
            "ID or RUN@VERSION",
        )
