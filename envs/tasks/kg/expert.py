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
        self._taken = 0
        self._shown: list[str] = []
        self._made: list[str] = []  # the variable of each gold one, which errors may have moved
        self._awaits = False

    def act(self, messages: Sequence[Message]) -> ToolCall | str:
        if self._taken:
            self._learn(messages[-1].content)
        errs = self._random.random() < self._noise
        if self._taken == len(self._actions) or (errs and self._random.random() < 0.3):
            return f"Final Answer: {self._made[-1] if self._made else '#0'}"
        tool, arguments = self._actions[self._taken]
        self._taken += 1
        self._awaits = tool not in _LISTS
        given = [self._reference(argument) for argument in arguments]
        if errs:
            tool, given = self._mistaken(tool, given)
        return ToolCall(tool, dict(zip(PARAMETERS[tool], given, strict=True)))

    def _learn(self, reply: str) -> None:
        if reply.startswith(_REFUSED):
            if self._awaits:
                self._made.append(self._made[-1] if self._made else "#0")
        elif self._awaits:
            self._made.append(parse_made(reply) or "#0")
        else:
            self._shown = parse_list(reply)

    def _reference(self, argument: str) -> str:
        """`#k` counts the gold variables; an entity goes by its name in the question."""
        if argument.startswith("#"):
            index = int(argument[1:])
            return self._made[index] if index < len(self._made) else argument
        return self._names.get(argument, argument)

    def _mistaken(self, tool: str, given: list[str]) -> tuple[str, list[str]]:
        if tool in _OPPOSITE and self._random.random() < 0.5:
            return _OPPOSITE[tool], given
        if tool in ("get_neighbors", *_OPPOSITE):
            others = [name for name in self._shown if name != given[1]]
            return tool, [given[0], self._random.choice(others or given[1:])]
        others = [*self._names.values(), *self._made]
        return tool, [self._random.choice(others), *given[1:]]


def parse_list(reply: str) -> list[str]:
    """Return the names in a listing, of either style; none for an error."""
    if reply.startswith(_REFUSED) or reply == NOTHING:
        return []
    return _LISTED.findall(reply.removeprefix("Observation: "))


def parse_made(reply: str) -> str:
    """Return the variable that a reply mentions, as `#k`, or an empty text."""
    found = _MADE.search(reply)
    return found[0] if found and not reply.startswith(_REFUSED) else ""
