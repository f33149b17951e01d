"""The baselines of `agentrl envs check dbbench`."""

from collections.abc import Mapping, Sequence
from random import Random

from agentrl.envs.contract import Expert, Item, Message, ToolCall
from agentrl.envs.tasks import options
from agentrl.envs.tasks.dbbench.environment import COMMIT
from agentrl.envs.tasks.dbbench.problem import Problem


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Return a policy that commits a random cell of the table, and one that always commits 1."""
    problem = options.read(item.item_id, Problem, item.content)
    cells = [cell for row in problem.tables[0].rows for cell in row] or ["1"]
    return {"random": Commits(cells, seed), "constant": Commits(["1"], seed)}


class Commits:
    """An Expert that commits one of `answers` at once."""

    def __init__(self, answers: Sequence[str], seed: int) -> None:
        self._answers, self._random = answers, Random(seed)

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002
        return ToolCall(COMMIT, {"answers": [self._random.choice(self._answers)]})
