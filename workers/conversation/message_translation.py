"""Translates between our tokens and an external policy that speaks messages.

    history ─▶ OpenAI messages, tools ─▶ policy server ─▶ content, calls ─▶ our style ─▶ tokens

The text of the external policy is tokenised once, here, in the style of the trained model. The
tokens are masked from the loss, because no trained policy sampled them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentrl.core.errors import PolicyError
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.envs.contract import Message, Tool, ToolCall
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style, join_calls, parse, render
from agentrl.workers.policies.client import UNREADABLE, Ask, Completion, CompletionClient

NO_ANSWER = "(no answer)"  # to a call that the environment answered together with another


class _Function(msgspec.Struct):
    name: str
    arguments: str = "{}"


class _Call(msgspec.Struct):
    function: _Function


class Reply(msgspec.Struct):
    """A turn of an external model."""

    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: Reply


class _Answer(msgspec.Struct):
    choices: list[_Choice]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Translates for one episode, with its tools."""

    client: CompletionClient
    template: ChatTemplate
    style: Style
    tools: Sequence[Tool]

    def complete(
        self, policy: LivePolicy, history: Sequence[Message], ask: Ask, timeout_s: float
    ) -> Completion:
        """Request a turn and return it as masked tokens, cut at `ask.max_tokens`.

        Raises CheckpointNotServed, PolicyError.
        """
        body = {
            "model": policy.checkpoint_id,
            "messages": messages(history, self.tools, self.style),
            "tools": [_schema(tool) for tool in self.tools],
            "temperature": ask.temperature,
        }
        data = self.client.post(policy, "/v1/chat/completions", body, timeout_s)
        return self._tokens(call_text(read_reply(policy, data), self.style), ask.max_tokens)

    def _tokens(self, text: str, room: int) -> Completion:
        """Tokenise text; special tokens that it spells out are removed."""
        ids = [*self.template.encode(self.template.defuse(text)), self.template.end_id]
        reason = "stop" if len(ids) <= room else "length"
        return Completion(ids[:room], [], reason, masked=True)


def _schema(tool: Tool) -> dict[str, Any]:
    """Return the tool schema without `strict`, which some APIs do not support."""
    entry = tool.schema()
    entry["function"].pop("strict", None)
    return entry


def read_reply(policy: LivePolicy, data: bytes) -> Reply:
    """Parse the message of an answer. Raises PolicyError."""
    try:
        return msgspec.json.decode(data, type=_Answer).choices[0].message
    except UNREADABLE as error:
        raise PolicyError(f"policy server {policy.url} sent a malformed answer: {error}") from error


def call_text(message: Reply, style: Style) -> str:
    """Render a message as the trained model would write it, so that `parse` reads its calls."""
    calls = (render(_call(call.function), style) for call in message.tool_calls or ())
    return join_calls(message.content, calls)


def messages(
    history: Sequence[Message], tools: Sequence[Tool], style: Style
) -> list[dict[str, Any]]:
    """Convert a conversation to OpenAI messages: calls with ids, each answered."""
    found: list[dict[str, Any]] = []
    waiting: list[str] = []  # ids of calls without an answer
    for number, message in enumerate(history):
        if message.role == "tool" and waiting:
            found.append(_answer(waiting.pop(0), message.content))
            continue
        found += [_answer(call_id, NO_ANSWER) for call_id in waiting]
        waiting = []
        speaks = bool(tools) and message.role == "assistant"
        calls = parse(message.content, tools, style) if speaks else ""
        if isinstance(calls, str) or any(call.error for call in calls):
            role = "user" if message.role == "tool" else message.role
            found.append({"role": role, "content": message.content})
            continue
        waiting = [f"call_{number}_{n}" for n in range(len(calls))]
        entries = _entries(calls, waiting)
        found.append({"role": "assistant", "content": None, "tool_calls": entries})
    return found + [_answer(call_id, NO_ANSWER) for call_id in waiting]


def _entries(calls: Sequence[ToolCall], ids: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "id": call_id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": msgspec.json.encode(dict(call.arguments)).decode(),
            },
        }
        for call_id, call in zip(ids, calls, strict=True)
    ]


def _answer(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _call(function: _Function) -> ToolCall:
    """Parse a call. Arguments that are not a JSON object are refused by the schema later."""
    try:
        arguments = msgspec.json.decode(function.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        arguments = {}
    return ToolCall(function.name, arguments)
