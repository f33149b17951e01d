"""One episode: requests of a user, each done with calls; a text ends a request, the next comes."""

import json
from collections.abc import Sequence

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.types import Status
from agentrl.envs.contract import Message, Observation, Outcome, Tool, ToolCall, shortened
from agentrl.envs.tasks.bfcl.problem import Problem
from agentrl.envs.tasks.bfcl.scoring import Judge
from agentrl.envs.tasks.bfcl.world import World, tools, written
from agentrl.envs.tasks.options import Style

MAX_ANSWER = 20_000  # characters of a function's answer that the agent sees
MAX_STEPS = 20  # turns with calls for one request, as published
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
        self._world: World | None = World(problem.classes, problem.config)
        self._judge = Judge(problem)
        self._request = self._steps = 0
        described = tuple(each.tool() for each in problem.described)
        self._tools = described or tools(problem.classes)
        self._allowed = {tool.name for tool in self._tools}

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self._tools

    def start(self) -> Observation:
        system = TASK_TAG if self._style == "compact" else SYSTEM
        return Observation((Message("system", system), self._asked()))

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if self._world is None:
            raise EnvironmentFailure("bfcl: the episode is closed")
        if isinstance(calls, str) or not calls:
            return self._next(self._world)
        self._steps += 1
        answers = tuple(self._answered(self._world, call) for call in calls)
        if self._steps == MAX_STEPS:
            return self._ended(0.0, Status.TASK_LIMIT)
        return Outcome(answers)

    def close(self) -> None:
        self._world = None

    def _asked(self) -> Message:
        request = self._problem.requests[self._request]
        short = request.short if self._style == "compact" else ""
        return Message("user", short or request.text)

    def _answered(self, world: World, call: ToolCall) -> Message:
        """A call that is ill-formed is answered, and not done."""
        if call.error:
            return Message("tool", written({"error": call.error}), call.name)
        if call.name not in self._allowed:
            error = f"there is no function {shortened(call.name, 60)}"
            return Message("tool", written({"error": error}), call.name)
        answer = world.run(call.name, call.arguments)
        text = written(answer)
        self._judge.saw(text)
        shown = _shorten(answer) if self._style == "compact" else text
        return Message("tool", shortened(shown, MAX_ANSWER), call.name)

    def _next(self, world: World) -> Outcome:
        """The first request that was not done ends the episode: nothing after it can count."""
        if not self._judge.right(self._request, world):
            return self._ended(0.0, Status.COMPLETED)
        self._request, self._steps = self._request + 1, 0
        if self._request == len(self._problem.requests):
            return self._ended(1.0, Status.COMPLETED)
        return Outcome((self._asked(),))

    def _ended(self, reward: float, status: Status) -> Outcome:
        done = self._request / len(self._problem.requests)
        metrics = {"requests_done": done}
        return Outcome((), True, status, reward, reward, metrics)


def _shorten(answer: dict[str, object]) -> str:
    """The values of an answer alone; `ok` where there are none."""
    values = [each if isinstance(each, str) else json.dumps(each) for each in answer.values()]
    return " ".join(values) or "ok"
