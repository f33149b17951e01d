"""One episode: requests of a user, each done with calls; a text ends a request, the next comes."""

import json
from collections.abc import Sequence

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.types import Status
from agentrl.envs.contract import Message, Observation, Outcome, Tool, ToolCall, shortened
from agentrl.envs.tasks.bfcl.package import import_part
from agentrl.envs.tasks.bfcl.problem import Problem
from agentrl.envs.tasks.bfcl.scoring import Checker, simulate
from agentrl.envs.tasks.bfcl.simulation import Simulation
from agentrl.envs.tasks.options import Style

MAX_RESULT = 40_000  # characters of a function's result that the agent sees
TASK_TAG = "bfcl"  # the whole system message of the compact style

SYSTEM = """\
You do what a user asks with the functions you are given. The user makes several requests, one \
after the other; each may need calls of several functions, and what earlier calls did stays done.
- Call functions, as many as the request needs, and read their answers.
- When the request is done, reply with a short text without a call; the user then makes the next \
request.
- Do not change anything that the user did not ask for."""


class BfclEnvironment:
    """An Environment over fresh instances of the item's classes."""

    def __init__(self, problem: Problem, style: Style) -> None:
        """Raises ItemError."""
        self._problem, self._style = problem, style
        self._simulation: Simulation | None = simulate(problem)
        self._checker = Checker(problem)
        self._prompts = import_part("constants.default_prompts")
        self._request = self._steps = 0

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._problem.tools(self._request))

    def start(self) -> Observation:
        system = TASK_TAG if self._style == "compact" else SYSTEM
        return Observation((Message("system", system), self._next_message()))

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if self._simulation is None:
            raise EnvironmentFailure("bfcl: the episode is closed")
        if isinstance(calls, str) or not calls:
            return self._next_request(self._simulation)
        self._steps += 1
        answers = tuple(self._answer(self._simulation, call) for call in calls)
        if self._steps > self._prompts.MAXIMUM_STEP_LIMIT or self._simulation.is_full:
            return self._end(0.0, Status.TASK_LIMIT)
        return Outcome(answers)

    def close(self) -> None:
        self._simulation = None

    def _next_message(self) -> Message:
        """Return the request; one that brings new functions describes them, as published."""
        request = self._problem.requests[self._request]
        text = (self._style == "compact" and request.short) or request.text
        if request.functions:
            new = [tool.schema() for tool in self.tools if tool.name in request.functions]
            announcement = self._prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
            text += announcement.format(functions="\n".join(map(json.dumps, new)))
        return Message("user", text)

    def _answer(self, simulation: Simulation, call: ToolCall) -> Message:
        """Make a call; one that is ill-formed is answered with its error only."""
        if call.error:
            return Message("tool", json.dumps({"error": call.error}), call.name)
        result = simulation.run(shortened(call.name, 60), call.arguments)
        self._checker.record(result)
        shown = _shorten(result) if self._style == "compact" else result
        return Message("tool", shortened(shown, MAX_RESULT), call.name)

    def _next_request(self, simulation: Simulation) -> Outcome:
        """End the episode after the last request, and after the first that was not done."""
        if not self._checker.is_done(self._request, simulation):
            return self._end(0.0, Status.COMPLETED)
        self._request, self._steps = self._request + 1, 0
        if self._request == len(self._problem.requests):
            return self._end(1.0, Status.COMPLETED)
        return Outcome((self._next_message(),))

    def _end(self, reward: float, status: Status) -> Outcome:
        done = self._request / len(self._problem.requests)
        return Outcome((), True, status, reward, reward, {"requests_done": done})


def _shorten(result: str) -> str:
    """Return the values of a JSON object alone, and `ok` where there are none."""
    try:
        values = json.loads(result)
    except ValueError:
        return "ok" if result == "None" else result
    if not isinstance(values, dict):
        return result
    told = [each if isinstance(each, str) else json.dumps(each) for each in values.values()]
    return " ".join(told) or "ok"
