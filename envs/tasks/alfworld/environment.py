"""One episode: an errand, one action a turn. Only the first call of a message counts."""

from collections.abc import Sequence

from agentrl.core.types import Status
from agentrl.envs.contract import PROGRESS, Message, Observation, Outcome, ToolCall, strings
from agentrl.envs.tasks.alfworld.nearest_action import nearest_action
from agentrl.envs.tasks.alfworld.playable import PlayableGame
from agentrl.envs.tasks.options import Style

ACT = "take_action"
TASK_TAG = "alfworld"  # the whole system message of the compact style
MAX_REPEATS = 3  # the same action text so many times in a row ends the episode
MAX_WORDS = 32  # of an action that are compared with the admissible ones
REMINDER = f"No tool call found. Call {ACT} with one of the available actions."

SYSTEM = f"""\
Interact with a household to solve a task. You are an agent in a household and act to complete the \
goal you are given, together with a description of the room.
Every turn you get a list of actions: choose one of them and perform it by calling `{ACT}`. Any \
other action is illegal. After each turn the household answers; plan your next steps on it. \
"Nothing happened" means that the action was invalid and that you should try others.
Always call the tool, and act rather than deliberate."""

TOOLS = (strings(ACT, "Perform one of the available actions.", "action"),)


class AlfworldEnvironment:
    """An Environment that ends the episode once the errand is done."""

    tools = TOOLS

    def __init__(self, story: PlayableGame, style: Style) -> None:
        self._style = style
        self._story = story
        self._last = ""
        self._repeats = 0

    def start(self) -> Observation:
        system = TASK_TAG if self._style == "compact" else SYSTEM
        first = self._listing(self._story.welcome())
        return Observation.of(system, first)

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if isinstance(calls, str) or not calls:
            return Outcome((Message("user", REMINDER),))
        action = written_action(calls[0])
        if isinstance(action, Message):
            return Outcome((action,))
        answer, progress = self._act(action), self._story.progress
        metrics = {} if progress is None else {PROGRESS: progress}
        if self._story.won:
            return Outcome((), done=True, reward=1.0, score=1.0, metrics=metrics)
        self._repeats = self._repeats + 1 if action == self._last else 1
        self._last = action
        if self._repeats == MAX_REPEATS:
            return Outcome((), done=True, status=Status.INVALID_ACTION, metrics=metrics)
        return Outcome((Message("tool", self._listing(answer), ACT),), metrics=metrics)

    def close(self) -> None:
        """Do nothing: an episode holds only memory."""

    def _act(self, action: str) -> str:
        admissible = self._story.admissible()
        chosen = nearest_action(" ".join(action.split()[:MAX_WORDS]), admissible)
        return self._story.nothing if chosen is None else self._story.act(chosen)

    def _listing(self, text: str) -> str:
        if self._style == "compact":
            return text
        actions = "\n".join(self._story.admissible())
        return f"{text} AVAILABLE ACTIONS: {actions}\n"


def written_action(call: ToolCall) -> str | Message:
    """Return the first line of a well-formed call's action, lower-cased, or an error.

    So does AgentBench; a model's further lines are not read.
    """
    if call.error:
        return Message("tool", f"Error: {call.error}", call.name)
    if call.name != ACT:
        return Message("tool", f"Error: unknown tool. Call {ACT}.", call.name)
    action = call.arguments.get("action")
    if set(call.arguments) != {"action"} or not isinstance(action, str):
        return Message("tool", f"Error: {ACT} takes exactly action: a string.", ACT)
    return action.strip().lower().split("\n")[0]
