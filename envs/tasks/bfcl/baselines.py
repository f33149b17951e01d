"""Baseline policies that never read the request: random and constant."""

from collections.abc import Sequence
from random import Random
from typing import Any

from agentrl.envs.contract import Message, Tool, ToolCall
from agentrl.envs.tasks.bfcl.problem import Problem

_DONE = 0.4  # probability a turn of the random policy


class RandomCalls:
    """Calls any tool with words it has seen, and says at times that it is done."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._tools = tuple(problem.tools(0))
        self._random = Random(seed)

    def act(self, messages: Sequence[Message]) -> ToolCall | str:
        if self._random.random() < _DONE:
            return "Done."
        tool = self._random.choice(self._tools)
        words = messages[-1].content.replace(".", ". ").split() or ["a"]
        return ToolCall(tool.name, self._arguments(tool, words))

    def _arguments(self, tool: Tool, words: list[str]) -> dict[str, Any]:
        return {
            name: self._value(tool.parameters["properties"][name]["type"], words)
            for name in tool.parameters["required"]
        }

    def _value(self, kind: str, words: list[str]) -> Any:
        word = self._random.choice(words)
        values = {"string": word, "array": [], "object": {}, "boolean": True}
        return values.get(kind, self._random.randint(0, 100))


class LooksAndLeaves:
    """Lists the folder, then says that it is done, whatever was asked."""

    def __init__(self) -> None:
        self._looked = False

    def act(self, _messages: Sequence[Message]) -> ToolCall | str:
        self._looked = not self._looked
        return ToolCall("ls", {}) if self._looked else "Done."
