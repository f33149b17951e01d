"""A task of a few lines, for tests of the protocol: add numbers until the target is reached."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs.contract import (
    Environment,
    Expert,
    Item,
    Message,
    Observation,
    Outcome,
    Tool,
    ToolCall,
)

ADD = Tool(
    "add",
    "Add a number to the total.",
    {
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
        "additionalProperties": False,
    },
)


class Counting:
    """A total above the target is no success; 7 takes two seconds, 13 breaks it.

    `at_seven`: what it does then.
    """

    tools: tuple[Tool, ...] = (ADD,)
    at_seven: Callable[[], object] = staticmethod(lambda: time.sleep(2.0))

    def __init__(self, target: int) -> None:
        self._target = target
        self._total = 0

    def start(self) -> Observation:
        return Observation(
            (
                Message("system", "You count."),
                Message("user", f"Reach {self._target}."),
            )
        )

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if isinstance(calls, str) or not calls:
            return Outcome((Message("user", "Call add."),))
        number = calls[0].arguments.get("number")
        if type(number) is not int:
            return Outcome((), done=True, status=Status.INVALID_ACTION)
        if number == 13:
            raise EnvironmentFailure("13 is not a number here")
        if number == 7:
            self.at_seven()
        self._total += number
        if self._total < self._target:
            return Outcome((Message("tool", str(self._total), "add"),))
        success = float(self._total == self._target)
        metrics = {"total": float(self._total), "score": success}
        return Outcome((), done=True, reward=success, score=success, metrics=metrics)

    def close(self) -> None:
        """Nothing to free."""


class CountingSource:
    """A TaskSource: the item at place n has the target n + 1."""

    name = "counting"
    max_turns = 30
    splits = ("all",)

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._items = options.get("items", 20)

    def items(self, split: str) -> Sequence[Item]:
        if split != "all":
            raise ItemError(f"counting: unknown split {split}")
        return [Item(self.name, str(n), {"target": n + 1}) for n in range(self._items)]

    def make(self, item: Item) -> Environment:
        return Counting(int(item.content["target"]))

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:  # noqa: ARG002
        raise ItemError("counting has no demonstrator")


class LateTool(Counting):
    """Its tool comes with the first turn."""

    tools: tuple[Tool, ...] = ()

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        self.tools = (ADD,)
        return super().call(calls)


class LateToolSource(CountingSource):
    """A TaskSource of episodes that begin without a tool."""

    def make(self, item: Item) -> Environment:
        return LateTool(int(item.content["target"]))


class UnmadeSource(CountingSource):
    """A TaskSource whose items cannot be read: their disk is unavailable."""

    def items(self, split: str) -> Sequence[Item]:
        raise ItemError(f"{self.name}: split {split} is not here")
