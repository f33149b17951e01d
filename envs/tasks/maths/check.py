"""The baselines of `agentrl envs check maths`."""

import re
from collections.abc import Mapping

from agentrl.envs.contract import Expert, Item, ToolCall
from agentrl.envs.tasks import options
from agentrl.envs.tasks.check import RandomCall
from agentrl.envs.tasks.maths.environment import ANSWER
from agentrl.envs.tasks.maths.problem import Problem


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Return a policy that answers a random number of the question, and one that answers 1."""
    numbers = re.findall(r"\d+", options.read(item, Problem).question) or ["1"]
    return {
        "random": RandomCall([ToolCall(ANSWER, {"answer": each}) for each in numbers], seed),
        "constant": RandomCall([ToolCall(ANSWER, {"answer": "1"})]),
    }
