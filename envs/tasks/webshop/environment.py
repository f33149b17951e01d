"""One episode: a goal, a visit to the shop, a purchase. Only the first call of a message counts."""

from collections.abc import Sequence

from agentrl.envs.contract import Message, Observation, Outcome, ToolCall, shortened, strings
from agentrl.envs.tasks.options import Style
from agentrl.envs.tasks.webshop.compact_page import compact_page
from agentrl.envs.tasks.webshop.goals import Goal
from agentrl.envs.tasks.webshop.reward import Worth
from agentrl.envs.tasks.webshop.shop import Shop, available

SEARCH_TOOL = "search_action"
CLICK_TOOL = "click_action"
TASK_TAG = "webshop"  # the whole system message of the compact style
NO_CALL = "No executable tool calls found! You should call a tool instead."
ARGUMENTS = {SEARCH_TOOL: "keywords", CLICK_TOOL: "value"}

SYSTEM = """\
You are shopping on the web. You get an instruction that says what to buy, and you have to follow \
it.
Every round I show you an observation and a list of available actions, and you respond by calling \
one of the tools. Use the search tool where a search is available; click any of the clickables.
An action that is not valid does nothing. What you search for is up to you, so choose the keywords \
carefully; what you click has to be one of the values in the list of available actions.
First think about what to do, then call a tool accordingly. Always use a tool, even if you have \
questions: use whatever tool is available, you need no permission from the user."""

TOOLS = (
    strings(SEARCH_TOOL, "Search the shop with keywords.", ARGUMENTS[SEARCH_TOOL]),
    strings(CLICK_TOOL, "Click one of the available clickables.", ARGUMENTS[CLICK_TOOL]),
)


class WebshopEnvironment:
    """An Environment over a Shop."""

    tools = TOOLS

    def __init__(self, shop: Shop, style: Style) -> None:
        self._shop = shop
        self._compact = style == "compact"

    def start(self) -> Observation:
        if self._compact:
            first = self._shop.goal.short or self._shop.goal.instruction
            return Observation.of(TASK_TAG, first)
        text = f"The initial observation:\n{self._page()}"
        return Observation.of(SYSTEM, text)

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if isinstance(calls, str) or not calls:
            text = NO_CALL if self._compact else f"Observation:\n{NO_CALL}{self._actions()}"
            return Outcome((Message("user", text),))
        call = calls[0]
        argument, complaint = written_action(call)
        if complaint:
            return Outcome((Message("tool", f"Error: {complaint}", call.name),))
        bought = self._act(call.name, argument)
        if bought is not None:
            return self._finish(bought)
        if self._compact:
            return Outcome((Message("tool", compact_page(self._shop), call.name),))
        action = f"{call.name.removesuffix('_action')}[{shortened(argument)}]"
        text = f"Action: {action}\n\nObservation:\n{self._page()}"
        return Outcome((Message("tool", text, call.name),))

    def close(self) -> None:
        """An episode holds nothing but memory."""

    def _act(self, tool: str, argument: str) -> Worth | None:
        if tool == CLICK_TOOL:
            return self._shop.click(argument)
        self._shop.search(argument)
        return None

    def _finish(self, bought: Worth) -> Outcome:
        goal: Goal = self._shop.goal
        metrics = {
            "type": bought.type,
            "attributes": bought.attributes / max(1, len(goal.attributes)),
            "options": bought.options / len(goal.options) if goal.options else 1.0,
            "price": float(bought.price),
        }
        return Outcome((), done=True, reward=bought.reward, score=bought.reward, metrics=metrics)

    def _page(self) -> str:
        return " [SEP] ".join(self._shop.texts()) + self._actions()

    def _actions(self) -> str:
        return f"\n\nAvailable Actions:\n{available(self._shop)}"


def written_action(call: ToolCall) -> tuple[str, str]:
    """A call's argument and what is wrong with the call, one of them empty."""
    if call.error:
        return "", call.error
    name = ARGUMENTS.get(call.name)
    if name is None:
        return "", f"unknown tool. Call {SEARCH_TOOL} or {CLICK_TOOL}."
    value = call.arguments.get(name)
    if set(call.arguments) != {name} or not isinstance(value, str):
        return "", f"{call.name} takes exactly {name}: a string."
    return value, ""
