"""The baselines of `agentrl envs check webshop`."""

from collections.abc import Mapping

from agentrl.envs.contract import Expert, Item
from agentrl.envs.tasks.webshop.baselines import FirstResult, RandomShopper
from agentrl.envs.tasks.webshop.task_source import WebshopSource


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Random clicks, and always the first result of the instruction."""
    source = WebshopSource({})
    random, constant = source.visit(item), source.visit(item)
    return {"random": RandomShopper(random, seed), "constant": FirstResult(constant)}
