"""A client of the OpenEnv protocol: its resets and steps as episodes of one of our tasks.

reset(split, index | seed) ─▶ Sessions.start ─▶ messages
call_tool ─▶ Sessions.interact ─▶ the tool's answer, and at the end reward and done
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from agentrl.core.errors import AgentRLError
from agentrl.envs.contract import Item, TaskSource
from agentrl.envs.server import wire
from agentrl.envs.server.session import Caller, Refused
from agentrl.envs.server.sessions import Sessions

SAY = "say"  # the tool that stands for a turn without a call
SAY_TOOL = {
    "name": SAY,
    "description": "Write a turn without a call.",
    "input_schema": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    },
}


class ProtocolError(Exception):
    """An error message of the protocol. `code`: as openenv.core names it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ResetArguments(msgspec.Struct):
    """What a reset may say; further arguments are ignored."""

    split: str | None = None
    index: int | None = None
    seed: int | None = None
    episode_id: str | None = None


class CallTool(msgspec.Struct):
    """An action."""

    tool_name: str = ""
    arguments: dict[str, Any] = {}
    type: str = "call_tool"


class OpenEnvPlay:
    """One client, which plays one episode at a time. Used on the event loop's thread only."""

    def __init__(self, task: str, source: TaskSource, max_turns: int, sessions: Sessions) -> None:
        self._task, self._source, self._max_turns = task, source, max_turns
        self._sessions = sessions
        self._key: tuple[str, int] | None = None
        self._tools: list[dict[str, Any]] | None = None  # before the first reset
        self._state: dict[str, Any] = {"episode_id": None, "step_count": 0}
        self.used = time.monotonic()

    async def reset(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an episode. Raises ProtocolError, also where the server is full."""
        self.used = time.monotonic()
        arguments = _convert(fields, ResetArguments)
        await self.close()
        sessions = self._sessions
        running = len(sessions.running())
        if running >= sessions.concurrency:
            raise ProtocolError(
                "CAPACITY_REACHED",
                f"Server at capacity: {running}/{sessions.concurrency} sessions active",
            )
        try:
            item = await sessions.threads.run(partial(self._item, arguments))
            key = self._key = (self._task, random.SystemRandom().getrandbits(53))
            caller = Caller(_never)
            make = partial(self._source.make, item)
            answer, _ = await sessions.start(
                key, item.item_id, make, repeatable=False, caller=caller
            )
        except (Refused, AgentRLError) as error:
            raise ProtocolError("EXECUTION_ERROR", str(error)) from error
        self._accept(answer)
        self._state = {"episode_id": arguments.episode_id or str(key[1]), "step_count": 0}
        self._state |= {"task": self._task, "item_id": item.item_id}
        return {"observation": {"messages": answer["messages"]}, "reward": None, "done": False}

    async def step(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Apply an action: a tool's call, or the question for the tools. Raises ProtocolError."""
        self.used = time.monotonic()
        action = _convert(fields, CallTool)
        if action.type == "list_tools":
            tools = await self.tools()
            return {"observation": {"tools": tools}, "reward": None, "done": False}
        if self._key is None:
            raise ProtocolError("EXECUTION_ERROR", "no episode: reset the environment first")
        message = wire.AssistantMessage("assistant", str(action.arguments.get("text", "")))
        if action.tool_name != SAY:
            function = wire.Function(action.tool_name, action.arguments)
            message = wire.AssistantMessage("assistant", tool_calls=[wire.Call(function)])
        try:
            answer = await self._sessions.interact(self._key, message, None, self._max_turns)
        except Refused as error:
            raise ProtocolError("EXECUTION_ERROR", str(error)) from error
        self._accept(answer)
        self._state["step_count"] += 1
        text = "\n".join(each["content"] for each in answer["messages"])
        result = {"content": [{"type": "text", "text": text}], "data": text, "is_error": False}
        done = bool(answer["finish"])
        metadata = {"status": answer["status"], "metrics": answer["metric"]}
        if done:
            metadata["score"] = answer.get("score", answer["reward"])
        observation = {"tool_name": action.tool_name, "result": result, "error": None}
        return {
            "observation": observation | {"metadata": metadata},
            "reward": answer["reward"],
            "done": done,
            "metadata": metadata,
        }

    async def tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the tools of the episode; before the first reset, of an item.

        Raises ProtocolError.
        """
        if self._tools is None:
            await self.reset({"index": 0})
        tools = self._tools or []
        own = {each["name"] for each in tools}
        return [*tools, *(() if SAY in own else (SAY_TOOL,))]

    def state(self) -> Mapping[str, Any]:
        """Return the identity of the episode, and its steps."""
        return self._state

    def plays(self) -> bool:
        """Return whether an episode runs."""
        return self._key is not None and self._key[1] in self._sessions.running(self._task)

    async def close(self) -> None:
        """End the episode, if one runs."""
        key, self._key = self._key, None
        if key is not None:
            with suppress(Refused):  # it has ended
                await self._sessions.cancel(key)

    def _item(self, arguments: ResetArguments) -> Item:
        """The item of a reset; any one where nothing is named. Raises ItemError, ProtocolError."""
        split = arguments.split or self._source.splits[0]
        items = self._source.items(split)
        if not items:
            raise ProtocolError("EXECUTION_ERROR", f"{self._task}: split {split} is empty")
        index = arguments.index
        if index is None:
            seed = (
                random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
            )
            index = random.Random(seed).randrange(len(items))
        if not 0 <= index < len(items):
            raise ProtocolError(
                "VALIDATION_ERROR", f"index {index}: the split has {len(items)} items"
            )
        return items[index]

    def _accept(self, answer: Mapping[str, Any]) -> None:
        """Keep the tools; raise ProtocolError for an end that the agent did not cause."""
        if answer["finish"] and answer["status"] not in wire.OUTCOMES:
            self._key = None
            raise ProtocolError("EXECUTION_ERROR", str(answer.get("error") or answer["status"]))
        self._tools = [_tool(each["function"]) for each in answer["tools"]]


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    named = {"name": function["name"], "description": function["description"]}
    return {**named, "input_schema": function["parameters"]}


def _convert(fields: Mapping[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError("VALIDATION_ERROR", str(error)) from error


async def _never() -> None:
    """A client on a socket is there until the socket says otherwise."""
    await asyncio.Event().wait()
