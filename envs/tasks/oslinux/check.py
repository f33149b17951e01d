"""The baselines of `agentrl envs check os`."""

from collections.abc import Mapping, Sequence
from random import Random

from agentrl.envs.contract import Expert, Item, Message, ToolCall
from agentrl.envs.tasks.oslinux.environment import ANSWER

CONSTANT = "4"  # the answer that is right most often


def baselines(item: Item, seed: int) -> Mapping[str, Expert]:
    """Return a policy of random digits and words, and one that always answers the same."""
    words = sorted(set(str(item.content["description"]).split()))
    return {
        "random": _Answers([*map(str, range(10)), *words], seed),
        "constant": _Answers([CONSTANT], seed),
    }


class _Answers:
    """An Expert that answers at once."""

    def __init__(self, choices: Sequence[str], seed: int) -> None:
        self._choices = choices
        self._random = Random(seed)

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002
        return ToolCall(ANSWER, {"answer": self._random.choice(self._choices)})
