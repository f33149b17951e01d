"""One episode of an OpenEnv server: an agent's calls become actions, their rewards a turn's."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.types import Status
from agentrl.envs.adapters.openenv.container import ServerContainer
from agentrl.envs.adapters.openenv.server import ActionRefused, Session, Step, result_text
from agentrl.envs.adapters.steps import Answer, StepEnvironment
from agentrl.envs.contract import Observation, Outcome, Tool, ToolCall, shortened
from agentrl.envs.tasks import options

ACT = "act"
BEGIN = "The episode begins."


class OpenEnvOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options. `prompt`: the system message. `observation`: the fields of an observation that the
    agent reads; all where empty. `reset`: further arguments of `reset`. `reward`: of an episode
    the `sum` of its steps' rewards, or the `last` one. `solved`: the reward from which the score
    is 1; the score is the reward where absent. `headers`: of each request, `${NAME}` from the
    environment. `timeout_s`: of one answer. `wait_s`: for a server that is full or away. `seed`,
    `items`, `test_items`: of a server without tasks. Of an image: `port` of its server, `start_s`
    until it listens there, `memory_mb` of its container, `tasks`: how many each split has.
    """

    prompt: str = ""
    observation: list[str] = []
    reset: dict[str, Any] = {}
    reward: Literal["sum", "last"] = "sum"
    solved: float | None = None
    headers: dict[str, str] = {}
    timeout_s: Annotated[float, Meta(gt=0.0)] = 60.0
    wait_s: Annotated[float, Meta(ge=0.0)] = 120.0
    max_turns: options.Count = 50
    seed: int = 0
    items: options.Count = 1000
    test_items: options.Count = 200
    port: Annotated[int, Meta(ge=1, le=65535)] = 8000
    start_s: Annotated[float, Meta(gt=0.0)] = 60.0
    memory_mb: options.Count = 1024
    tasks: dict[str, options.Count] = {}


class OpenEnvEnvironment(StepEnvironment):
    """One episode, in a session of its own."""

    def __init__(
        self,
        session: Session,
        first: Step,
        action: Tool | None,
        settings: OpenEnvOptions,
        container: ServerContainer | None,
    ) -> None:
        """`action`: None where an action is a tool's call. `container`: of its own, to release.

        Raises EnvironmentFailure.
        """
        super().__init__(settings.max_turns)
        self._session, self._first, self._settings = session, first, settings
        self._container = container
        self._action = action
        self._server_tools = session.tools()
        self.tools: tuple[Tool, ...] = (*((action,) if action else ()), *self._server_tools)

    def start(self) -> Observation:
        text = self._observation_text(self._first) or BEGIN
        return Observation.of(self._settings.prompt, text)

    def close(self) -> None:
        """End the session; remove the container if its server has failed, else give it back."""
        self._session.close()
        container, self._container = self._container, None
        if container is not None:
            container.release(sound=not self._session.has_failed)

    def _answer_text(self, text: str) -> Answer:
        action = self._text_action(text)
        if action is not None:
            return self._step(action)
        return ("", Status.COMPLETED) if self._server_tools else (f"Call {ACT}.", None)

    def _answer_call(self, call: ToolCall) -> Answer:
        if call.error or call.name not in {tool.name for tool in self.tools}:
            return call.error or f"There is no tool {shortened(call.name)}.", None
        if self._action and call.name == self._action.name:
            return self._step(call.arguments)
        if self._action:
            return self._session.call_tool(call.name, call.arguments), None
        return self._step(
            {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}
        )

    def _step(self, action: Mapping[str, Any]) -> Answer:
        try:
            step = self._session.step(action)
        except ActionRefused as error:
            return str(error), None
        self._rewards.append(float(step.reward or 0.0))
        return self._observation_text(step), Status.COMPLETED if step.done else None

    def _text_action(self, text: str) -> Mapping[str, Any] | None:
        """A turn without a call as an action: its one field, if that is a text."""
        if not self._action or not text:
            return None
        fields = self._action.parameters["properties"]
        required = self._action.parameters.get("required", [])
        if len(required) == 1 and fields[required[0]].get("type") == "string":
            return {required[0]: text}
        return None

    def _observation_text(self, step: Step) -> str:
        """An observation as the agent reads it: the one text that it has, else JSON."""
        observation = step.observation
        if "tool_name" in observation:  # openenv.core: CallToolObservation
            error = observation.get("error") or {}
            if error.get("error_type") == "transport_error":
                raise EnvironmentFailure(
                    f"openenv: {observation['tool_name']}: {error.get('message')}"
                )
            return str(error["message"]) if error else result_text(observation.get("result"))
        names = self._settings.observation
        fields = {name: observation[name] for name in names or observation if name in observation}
        if not names and not fields.get("metadata"):
            fields.pop("metadata", None)
        if len(fields) == 1 and isinstance(text := next(iter(fields.values())), str):
            return text
        return json.dumps(fields, ensure_ascii=False) if fields else ""

    def _turn_reward(self) -> float:
        """Return the rewards of the turn's steps; 0 where only the episode's last one counts."""
        return super()._turn_reward() if self._settings.reward == "sum" else 0.0

    def _end(self, status: Status) -> Outcome:
        rewards, solved = self._rewards, self._settings.solved
        summed = self._settings.reward == "sum"
        last = (rewards or [0.0])[-1]
        whole = math.fsum(rewards) if summed else last
        state: Mapping[str, Any] = {}
        with suppress(EnvironmentFailure):  # the rewards have arrived: they count without it
            state = self._session.state()
        numbers = {
            name: float(each)
            for name, each in state.items()
            if isinstance(each, bool | int | float)
        }
        return Outcome(
            (),
            done=True,
            status=status,
            reward=self._turn_reward() if summed else last,
            score=whole if solved is None else float(whole >= solved),
            metrics=numbers,
        )
