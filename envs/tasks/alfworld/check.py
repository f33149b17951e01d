"""The baselines of `agentrl envs check alfworld`."""

from collections.abc import Mapping, Sequence
from random import Random

from agentrl.envs.contract import Expert, Item, Message, ToolCall
from agentrl.envs.tasks.alfworld.environment import ACT
from agentrl.envs.tasks.alfworld.playable import PlayableGame, open_game
from agentrl.envs.tasks.check import RandomCall


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Return a policy of random admissible actions and one that always looks."""
    looks = RandomCall([ToolCall(ACT, {"action": "look"})])
    return {"random": RandomActions(open_game(item, "compact"), seed), "constant": looks}


class RandomActions:
    """An Expert that takes random admissible actions; it plays the same game to know them."""

    def __init__(self, story: PlayableGame, seed: int) -> None:
        self._story = story
        self._random = Random(seed)

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002
        action = self._random.choice(list(self._story.admissible()))
        self._story.act(action)
        return ToolCall(ACT, {"action": action})
