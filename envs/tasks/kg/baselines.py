"""Baseline policies that never read the question: random and constant."""

from collections.abc import Sequence
from random import Random

from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.kg.expert import parse_list, parse_made
from agentrl.envs.tasks.kg.problem import Problem

_ANSWERS = 0.3  # probability a turn of the random policy, once there is a variable


class RandomWalk:
    """Lists an entity or a variable, follows one of the relations it was shown, may answer."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._random = Random(seed)
        self._sets = list(problem.entities)
        self._made: list[str] = []
        self._last: ToolCall | None = None

    def act(self, messages: Sequence[Message]) -> ToolCall | str:
        reply, last, self._last = messages[-1].content, self._last, None
        if last and last.name == "get_relations" and (shown := parse_list(reply)):
            arguments = {**last.arguments, "relation": self._random.choice(shown)}
            return ToolCall("get_neighbors", arguments)
        if not last and (variable := parse_made(reply)):
            self._made.append(variable)
        if self._made and self._random.random() < _ANSWERS:
            return f"Final Answer: {self._random.choice(self._made)}"
        pair = self._random.sample([*self._sets, *self._made], k=min(2, len(self._made)))
        if len(pair) == 2 and self._random.random() < _ANSWERS:
            return ToolCall("intersection", {"variable1": pair[0], "variable2": pair[1]})
        chosen = self._random.choice([*self._sets, *self._made])
        self._last = ToolCall("get_relations", {"variable": chosen})
        return self._last


class FirstRelation:
    """Follows the first relation of the first entity and answers with what it finds."""

    def __init__(self, problem: Problem) -> None:
        self._entity = next(iter(problem.entities), "")
        self._turn = 0

    def act(self, messages: Sequence[Message]) -> ToolCall | str:
        self._turn += 1
        if self._turn == 1:
            return ToolCall("get_relations", {"variable": self._entity})
        if self._turn == 2:
            relation = next(iter(parse_list(messages[-1].content)), "")
            arguments = {"variable": self._entity, "relation": relation}
            return ToolCall("get_neighbors", arguments)
        return "Final Answer: #0"
