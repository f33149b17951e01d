"""A task whose every turn hangs, and a command with that task: `hanging_task.py envs serve …`."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.cli.main import main
from agentrl.envs import registry
from agentrl.envs.contract import Environment, Item, Observation, Outcome, Tool, ToolCall
from agentrl.envs.tasks.dbbench.task_source import DbbenchSource


class Hanging:
    """An Environment that answers no call, and says so on stderr."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self._environment.tools

    def start(self) -> Observation:
        return self._environment.start()

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:  # noqa: ARG002
        print("hangs", file=sys.stderr, flush=True)
        time.sleep(3600)
        raise AssertionError

    def close(self) -> None:
        self._environment.close()


class HangingSource(DbbenchSource):
    """dbbench's items."""

    def make(self, item: Item) -> Environment:
        return Hanging(super().make(item))


def source(options: Mapping[str, Any]) -> HangingSource:
    return HangingSource(options)


if __name__ == "__main__":
    registry.TASKS["hanging"] = "hanging_task:source"
    main()
