"""The baselines of `agentrl envs check maths`."""

import re
from collections.abc import Mapping, Sequence
from random import Random

from agentrl.envs.contract import Expert, Item, Message, ToolCall
from agentrl.envs.tasks import options
from agentrl.envs.tasks.maths.environment import ANSWER
from agentrl.envs.tasks.maths.problem import Problem


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Return a policy that answers a random number of the question, and one that answers 1."""
    problem = options.read(item.item_id, Problem, item.content)
    numbers = re.findall(r"\d+", problem.question) or ["1"]
    return {"random": Answers(numbers, seed), "constant": Answers(["1"], seed)}


class Answers:
    """An Expert that gives one of `answers` at once."""

    def __init__(self, answers: Sequence[str], seed: int) -> None:
        self._answers, self._random = answers, Random(seed)

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002
        return ToolCall(ANSWER, {"answer": self._random.choice(self._answers)})
