"""An MCP server's tools as an environment; the user's items and reward make a task of it.

an item's prompt ─▶ calls of the server's tools, in a session of the episode's own ─▶ …
a turn without a call, or the last turn ─▶ reward(item, result)
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from agentrl.core.errors import ItemError, nearest
from agentrl.core.types import Status
from agentrl.envs.adapters.mcp.session import Session
from agentrl.envs.contract import (
    Environment,
    Expert,
    Item,
    Message,
    Observation,
    Outcome,
    Tool,
    ToolCall,
    shortened,
)
from agentrl.envs.gateway.reward import Reward, call_reward, load_reward
from agentrl.envs.gateway.task_source import UserItems
from agentrl.envs.tasks import options

PROMPT = "Use the tools. When you are done, answer without a call."


class McpOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options. `items`: a JSONL file of objects with `id` and `prompt`. `reward`: module:function
    or path.py:function. `system`: the system message. `tools`: those of the server that the agent
    may call; all where empty. `env`: of a command, `${NAME}` from ours. `timeout_s`: of one call,
    and of the reward.
    """

    items: str = ""
    reward: str = ""
    system: str = PROMPT
    tools: list[str] = []
    env: dict[str, str] = {}
    timeout_s: Annotated[float, Meta(gt=0.0)] = 60.0
    max_turns: options.Count = 20


@dataclass(frozen=True, slots=True)
class Result:
    """What a reward is given. `answer`: the text of the last turn, empty where turns ran out;
    `messages`: the conversation as OpenAI has it; `call`: calls any tool of the server, for a
    reward that looks at what the episode left there.
    """

    answer: str
    messages: Sequence[Mapping[str, Any]]
    call: Any


class McpEnvironment:
    """One episode, in a session of its own."""

    def __init__(
        self, item: Item, prompt: str, session: Session, given: McpOptions, reward: Reward
    ) -> None:
        """Raises ItemError for a tool that the server does not have, EnvironmentFailure."""
        self._item, self._prompt, self._session = item, prompt, session
        self._given, self._reward = given, reward
        known = {tool.name: tool for tool in session.tools()}
        for name in given.tools:
            if name not in known:
                raise ItemError(f"{item.task}: option tools: no tool {name}{nearest(name, known)}")
        self.tools: tuple[Tool, ...] = tuple(known[name] for name in given.tools or known)
        self._said: list[Mapping[str, Any]] = []
        self._turns = 0

    def start(self) -> Observation:
        first = Observation.of(self._given.system, self._prompt)
        self._said += [{"role": each.role, "content": each.content} for each in first.messages]
        return first

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        self._turns += 1
        if isinstance(calls, str) or not calls:
            answer = calls if isinstance(calls, str) else ""
            self._said.append({"role": "assistant", "content": answer})
            return self._end(answer, Status.COMPLETED)
        made = [
            {"type": "function", "id": f"{self._turns}-{place}", "function": _function(call)}
            for place, call in enumerate(calls)
        ]
        self._said.append({"role": "assistant", "content": None, "tool_calls": made})
        answers = [Message("tool", self._answer(call), call.name) for call in calls]
        self._said += [
            {"role": "tool", "content": each.content, "tool_call_id": call["id"]}
            for each, call in zip(answers, made, strict=True)
        ]
        if self._turns >= self._given.max_turns:
            return self._end("", Status.TASK_LIMIT)
        return Outcome(tuple(answers))

    def close(self) -> None:
        self._session.close()

    def _answer(self, call: ToolCall) -> str:
        if call.error:
            return call.error
        if call.name not in {tool.name for tool in self.tools}:
            return f"There is no tool {shortened(call.name)}."
        return self._session.call(call.name, call.arguments)

    def _end(self, answer: str, status: Status) -> Outcome:
        result = Result(answer, self._said, self._session.call)
        found = call_reward(self._reward, self._item.content, result, self._given.timeout_s)
        return Outcome((), done=True, status=status, reward=found.reward, score=found.score)


class McpSource:
    """The items of the user's file, played with the tools of one server."""

    def __init__(self, task: str, argument: str, given: Mapping[str, Any]) -> None:
        """Raises ItemError for an option that is not understood."""
        self.name, self._server = task, argument
        self._options = options.parse(task, McpOptions, given)
        self.max_turns: int = self._options.max_turns
        self._items = UserItems(task, self._options.items)

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that the file names. Raises ItemError."""
        return self._items.splits

    def items(self, split: str) -> Sequence[Item]:
        """Raises ItemError, also for a reward that is not there."""
        found = self._items.of(split)
        load_reward(self._options.reward, self.name)
        return found

    def make(self, item: Item) -> Environment:
        """Raises ItemError, ConfigError, EnvironmentFailure."""
        given = self._options
        prompt = item.content.get("prompt")
        if not isinstance(prompt, str):
            raise ItemError(f"item {item.item_id}: no prompt", hint='{"id": "…", "prompt": "…"}')
        env = options.fill_env(self.name, "env", given.env)
        reward = load_reward(given.reward, self.name)
        session = Session(self._server, env, given.timeout_s)
        try:
            return McpEnvironment(item, prompt, session, given, reward)
        except BaseException:
            session.close()
            raise

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:  # noqa: ARG002
        raise ItemError(f"item {item.item_id}: an MCP server has no demonstrator")


def _function(call: ToolCall) -> Mapping[str, str]:
    return {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
