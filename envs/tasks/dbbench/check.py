"""The baselines of `agentrl envs check dbbench`."""

from collections.abc import Mapping

from agentrl.envs.contract import Expert, Item, ToolCall
from agentrl.envs.tasks import options
from agentrl.envs.tasks.check import RandomCall
from agentrl.envs.tasks.dbbench.environment import COMMIT
from agentrl.envs.tasks.dbbench.problem import Problem


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Return a policy that commits a random cell of the table, and one that always commits 1."""
    problem = options.read(item, Problem)
    cells = [cell for row in problem.tables[0].rows for cell in row] or ["1"]
    return {
        "random": RandomCall([ToolCall(COMMIT, {"answers": [cell]}) for cell in cells], seed),
        "constant": RandomCall([ToolCall(COMMIT, {"answers": ["1"]})]),
    }
