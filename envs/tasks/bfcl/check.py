"""The baselines of `agentrl envs check bfcl`."""

from collections.abc import Mapping

from agentrl.envs.contract import Expert, Item
from agentrl.envs.tasks import options
from agentrl.envs.tasks.bfcl.baselines import LooksAndLeaves, RandomCalls
from agentrl.envs.tasks.bfcl.problem import Problem


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Return a policy that calls at random, and one that always makes the same call."""
    return {"random": RandomCalls(options.read(item, Problem), seed), "constant": LooksAndLeaves()}
