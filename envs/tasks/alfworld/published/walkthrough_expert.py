"""An expert for published games: follows the walkthrough and returns to it after deviations."""

from collections.abc import Sequence
from random import Random

from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.alfworld.environment import ACT
from agentrl.envs.tasks.alfworld.published.game import Play

IDLE = ("look", "inventory", "help")


class ReplayExpert:
    """An Expert; `noise`: probability of an error a turn.

    It plays a game of its own in step. After an error it goes back to where the walkthrough was,
    opens what it closed and puts down what it should not hold; what it cannot mend, it loses.
    """

    def __init__(self, play: Play, walkthrough: Sequence[str], *, seed: int, noise: float) -> None:
        self._play = play
        self._left = list(walkthrough)
        self._place = ""
        self._random = Random(seed)
        self._noise = noise

    def act(self, messages: Sequence[Message]) -> ToolCall:  # noqa: ARG002 the game tells it all
        if self._random.random() < self._noise:
            others = [command for command in self._play.commands if command not in IDLE]
            action = self._random.choice(others)
        else:
            action = self._plan()
        self._play.do(action)
        return ToolCall(ACT, {"action": action})

    def _plan(self) -> str:
        commands = self._play.commands
        if self._left and self._left[0] in commands:
            action = self._left.pop(0)
            if action.startswith("go to "):
                self._place = action.removeprefix("go to ")
            return action
        for back in (f"go to {self._place}", f"open {self._place}"):
            if back in commands:
                return back
        return next((command for command in commands if command.startswith("move ")), "look")
