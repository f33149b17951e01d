"""Checks each [[teacher]] of a configuration, without the store."""

from collections import Counter
from pathlib import Path

from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError, require_known


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
        _check_checkpoint(f"teacher.checkpoint of {teacher.name}", teacher.checkpoint)
    untaught = sorted(config.tasks.keys() - teachers.keys())
    if untaught and not config.trainer.rewards:
        raise ConfigError(
            f"trainer.rewards = false: nothing teaches {', '.join(untaught)}",
            hint="add a [[teacher]] for it, or remove the key",
        )


def _check_checkpoint(key: str, checkpoint: str) -> None:
    if checkpoint.endswith("@latest"):
        raise ConfigError(
            f"{key}: {checkpoint} changes while its run goes on",
            hint="name a version: RUN@VERSION",
        )
    if checkpoint.startswith(("external(", "hub:")) or not checkpoint:
        raise ConfigError(
            f"{key}: {checkpoint or 'it'} is not a checkpoint",
            hint="name a directory, a checkpoint ID or RUN@VERSION",
        )
    if "/" in checkpoint and not (Path(checkpoint) / "config.json").is_file():
        raise ConfigError(
            f"{key}: {Path(checkpoint).resolve()} contains no model",
            hint="name a directory with config.json, a checkpoint ID or RUN@VERSION",
        )
