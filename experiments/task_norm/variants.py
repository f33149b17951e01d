"""Variants of tasks for studies: a task source under another name, with scaled rewards.

The options of a task may set `source`, the task whose items it plays (default: the task itself),
and `reward_scale` (default: 1). The task source does not see these two options.
"""

from collections.abc import Sequence
from dataclasses import replace

from agentrl.core.config.config import Config
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ConfigError
from agentrl.envs import registry
from agentrl.envs.contract import (
    Environment,
    Expert,
    Item,
    Observation,
    Outcome,
    TaskSource,
    Tool,
    ToolCall,
)


class ScaledEnvironment:
    """An environment with scaled rewards and unchanged scores."""

    def __init__(self, environment: Environment, scale: float) -> None:
        self._environment = environment
        self._scale = scale

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self._environment.tools

    def start(self) -> Observation:
        return self._environment.start()

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        outcome = self._environment.call(calls)
        return replace(outcome, reward=self._scale * outcome.reward)

    def close(self) -> None:
        self._environment.close()


class VariantSource:
    """A TaskSource with another one's items and environments under this task's name."""

    def __init__(self, name: str, source: TaskSource, scale: float) -> None:
        self.name = name
        self.max_turns = source.max_turns
        self._source = source
        self._scale = scale

    @property
    def splits(self) -> tuple[str, ...]:
        return self._source.splits

    def items(self, split: str) -> Sequence[Item]:
        return [replace(item, task=self.name) for item in self._source.items(split)]

    def make(self, item: Item) -> Environment:
        return ScaledEnvironment(self._source.make(self._own(item)), self._scale)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        return self._source.expert(self._own(item), seed=seed, noise=noise)

    def _own(self, item: Item) -> Item:
        return replace(item, task=self._source.name)


def variants(config: Config) -> dict[str, TaskSource]:
    """Open the sources of all tasks in this process. Raises ConfigError, ItemError."""
    return {name: _variant(name, task) for name, task in config.tasks.items()}


def _variant(name: str, task: Task) -> TaskSource:
    rest = dict(task.options)
    base, scale = rest.pop("source", name), rest.pop("reward_scale", 1.0)
    if not isinstance(scale, int | float) or not scale > 0:
        raise ConfigError(f"tasks.{name}.options.reward_scale: {scale!r} is not a number above 0")
    return VariantSource(name, registry.source(base, rest, task.source), float(scale))
