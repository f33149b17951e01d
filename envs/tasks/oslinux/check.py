"""The baselines of `agentrl envs check os`."""

from collections.abc import Mapping

from agentrl.envs.contract import Expert, Item, ToolCall
from agentrl.envs.tasks.check import RandomCall
from agentrl.envs.tasks.oslinux.environment import ANSWER

CONSTANT = "4"  # the answer that is right most often


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Return a policy of random digits and words, and one that always answers the same."""
    words = sorted(set(str(item.content["description"]).split()))
    choices = [*map(str, range(10)), *words]
    return {
        "random": RandomCall([ToolCall(ANSWER, {"answer": each}) for each in choices], seed),
        "constant": RandomCall([ToolCall(ANSWER, {"answer": CONSTANT})]),
    }
