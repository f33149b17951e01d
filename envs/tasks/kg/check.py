"""What `agentrl envs check kg` needs to know: baselines, and what the published splits share."""

from collections.abc import Mapping

from agentrl.envs.contract import Expert, Item
from agentrl.envs.tasks import options
from agentrl.envs.tasks.kg.baselines import FirstRelation, RandomWalk
from agentrl.envs.tasks.kg.problem import Problem

SHARED = {"agentbench": {"dev and rl": 13}}  # contents, as published


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """A random walk, and always the first relation."""
    problem = options.read(item, Problem)
    return {"random": RandomWalk(problem, seed), "constant": FirstRelation(problem)}
