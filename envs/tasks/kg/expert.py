"""A demonstrator: takes the item's tool calls one by one, then names the last variable.

With noise it errs as a learner does: another relation of those it was shown, another of the
question's entities, an answer too early, the smallest for the largest. After a refusal it goes on.
"""

import re
from collections.abc import Sequence
from random import Random

from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.kg.environment import NOTHING
from agentrl.envs.tasks.kg.problem import Problem
from agentrl.envs.tasks.kg.questions import action
from agentrl.envs.tasks.kg.tools import PARAMETERS

_LISTED = re.compile(r"[\w.\-]+")
_MADE = re.compile(r"#\d+")
_REFUSED = ("Error", "Arguments", "Provide", "No valid")
_OPPOSITE = {"argmax": "argmin", "argmin": "argmax"}
_LISTS = ("get_relations", "get_attributes")


class KgExpert:
    """An Expert; `noise`: probability of an error a turn."""

    def __init__(self, problem: Problem, *, seed: int, noise: float) -> None:
        self._names = {entity: name for name, entity in problem.entities.items()}
        self._actions = [action(text) for text in problem.actions]
        self._random = Random(seed)
        self._noise = noise
        self._position = 0
        self._last_list: list[str] = []
        self._variables: list[str] = []  # of each gold variable; errors may have moved it
        self._awaits = False

    def act(self, messages: Sequence[Message]) -> ToolCall | str:
        if self._position:
            self._learn(messages[-1].content)
        errs = self._random.random() < self._noise
        if self._position == len(self._actions) or (errs and self._random.random() < 0.3):
            return f"Final Answer: {self._variables[-1] if self._variables else '#0'}"
        tool, arguments = self._actions[self._position]
        self._position += 1
        self._awaits = tool not in _LISTS
        values = [self._reference(argument) for argument in arguments]
        if errs:
            tool, values = self._mistaken(tool, values)
        return ToolCall(tool, dict(zip(PARAMETERS[tool], values, strict=True)))

    def _learn(self, reply: str) -> None:
        if reply.startswith(_REFUSED):
            if self._awaits:
                self._variables.append(self._variables[-1] if self._variables else "#0")
        elif self._awaits:
            self._variables.append(parse_made(reply) or "#0")
        else:
            self._last_list = parse_list(reply)

    def _reference(self, argument: str) -> str:
        """`#k` counts the gold variables; an entity goes by its name in the question."""
        if argument.startswith("#"):
            index = int(argument[1:])
            return self._variables[index] if index < len(self._variables) else argument
        return self._names.get(argument, argument)

    def _mistaken(self, tool: str, values: list[str]) -> tuple[str, list[str]]:
        if tool in _OPPOSITE and self._random.random() < 0.5:
            return _OPPOSITE[tool], values
        if tool in ("get_neighbors", *_OPPOSITE):
            others = [name for name in self._last_list if name != values[1]]
            return tool, [values[0], self._random.choice(others or values[1:])]
        others = [*self._names.values(), *self._variables]
        return tool, [self._random.choice(others), *values[1:]]


def parse_list(reply: str) -> list[str]:
    """Return the names in a listing, of either style; none for an error."""
    if reply.startswith(_REFUSED) or reply == NOTHING:
        return []
    return _LISTED.findall(reply.removeprefix("Observation: "))


def parse_made(reply: str) -> str:
    """Return the variable that a reply mentions, as `#k`, or an empty text."""
    match = _MADE.search(reply)
    return match[0] if match and not reply.startswith(_REFUSED) else ""
