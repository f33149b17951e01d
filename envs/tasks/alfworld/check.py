"""The baselines of `agentrl envs check alfworld`."""

from collections.abc import Mapping, Sequence
from random import Random

from agentrl.envs.contract import Expert, Item, Message, ToolCall
from agentrl.envs.tasks import options
from agentrl.envs.tasks.alfworld.environment import ACT
from agentrl.envs.tasks.alfworld.playable import GeneratedGame, PlayableGame, ReleaseGame, play_game
from agentrl.envs.tasks.alfworld.problem import AlfworldProblem
from agentrl.envs.tasks.alfworld.published.games import PackedGame


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Return a policy of random admissible actions and one that always looks."""
    return {"random": RandomActions(_story(item), seed), "constant": Constant()}


class RandomActions:
    """An Expert that takes random admissible actions; it plays the same game to know them."""

    def __init__(self, story: PlayableGame, seed: int) -> None:
        self._story = story
        self._random = Random(seed)

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002
        action = self._random.choice(list(self._story.admissible()))
        self._story.act(action)
        return ToolCall(ACT, {"action": action})


class Constant:
    """An Expert that always looks around."""

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002
        return ToolCall(ACT, {"action": "look"})


def _story(item: Item) -> PlayableGame:
    if "problem" in item.content:
        packed = options.read(item.item_id, PackedGame, item.content)
        return ReleaseGame(play_game(item.item_id, packed))
    return GeneratedGame(options.read(item.item_id, AlfworldProblem, item.content), "compact")
