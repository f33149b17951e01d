"""The subset of the OpenAI chat API that agent programs may use.

    body ─▶ read ─▶ ChatRequest        answer ─▶ body of the reply

A field that would change the kind of answer is refused by name. A field that only tunes sampling is
ignored, because training needs the run's own sampling distribution.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agentrl.envs.contract import Tool, ToolCall

MAX_BODY = 4 * 1024 * 1024  # bytes
MODEL = "agentrl"
ROLES = {"developer": "system"} | {name: name for name in ("system", "user", "assistant", "tool")}

_PLAIN: Mapping[str, tuple[Any, ...]] = {  # fields with the values that mean what we do anyway
    "n": (None, 1),
    "best_of": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "stop": (None, []),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "tool_choice": (None, "auto"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "prompt_logprobs": (None,),
}
_READ = {"messages", "tools", "stream", "stream_options", "model", "parallel_tool_calls", "user"}


class ChatRefused(Exception):
    """A request refused with status 400. `field`: of the request."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A tool call in a request or reply.

    `arguments`: parsed JSON, or text that is not valid JSON.
    """

    call_id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message in a request or reply. `answers`: id of the call that a tool message answers."""

    role: str
    content: str
    name: str = ""
    calls: tuple[ChatCall, ...] = ()
    answers: str = ""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Length of a turn in tokens: before it, and itself. `cut`: it was ended by a limit."""

    prompt: int = 0
    completion: int = 0
    cut: bool = False


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A program's request. `ignored`: ignored fields. `single`: only one call per turn."""

    said: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]
    stream: bool = False
    usage: bool = False
    single: bool = False
    model: str = MODEL
    ignored: frozenset[str] = field(default=frozenset(), compare=False)


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    arguments: str | None = None


class _Item(msgspec.Struct):
    function: _Function
    id: str = ""
    type: str = "function"


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_Item] | None = None
    tool_call_id: str | None = None


class _Stream(msgspec.Struct):
    include_usage: bool = False


class _Body(msgspec.Struct):
    messages: list[_Message]
    model: str = MODEL
    tools: list[_Item] | None = None
    stream: bool | None = None
    stream_options: _Stream | None = None
    parallel_tool_calls: bool | None = None


def read(body: bytes) -> ChatRequest:
    """Parse the request in an HTTP body. Raises Refused."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
        typed = msgspec.convert(fields, _Body)
    except msgspec.ValidationError as error:
        raise ChatRefused(_field(str(error)), str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ChatRefused("body", f"not JSON: {error}") from error
    for name, meant in _PLAIN.items():
        if fields.get(name) not in meant and not (name == "tool_choice" and not typed.tools):
            raise ChatRefused(name, f"{json.dumps(fields[name])[:60]} cannot be had here")
    ignored = {name for name, value in fields.items() if value is not None}
    return ChatRequest(
        said=tuple(_read_message(n, message) for n, message in enumerate(typed.messages)),
        tools=tuple(_tool(n, each) for n, each in enumerate(typed.tools or ())),
        stream=bool(typed.stream),
        usage=bool(typed.stream_options and typed.stream_options.include_usage),
        single=typed.parallel_tool_calls is False,
        model=typed.model,
        ignored=frozenset(ignored - _READ - _PLAIN.keys()),
    )


def make_message(number: int, calls: Sequence[ToolCall] | str) -> ChatMessage:
    """Return the assistant's turn as a message. `number`: of the turn, part of its call ids."""
    if isinstance(calls, str):
        return ChatMessage("assistant", calls)
    named = (
        ChatCall(f"call_{number}_{n}", each.name, dict(each.arguments))
        for n, each in enumerate(calls)
    )
    return ChatMessage("assistant", "", calls=tuple(named))


def answer(number: int, turn: ChatMessage, length: TokenCounts, request: ChatRequest) -> bytes:
    """Return the body of a reply: JSON, or server-sent events if streamed."""
    if request.stream:
        return _stream_body(number, turn, length, request)
    end = _end(turn, length)
    choice = {"index": 0, "message": _message(turn), "logprobs": None, "finish_reason": end}
    head = _head(number, "chat.completion", request.model)
    return msgspec.json.encode(head | {"choices": [choice], "usage": _usage(length)})


def _stream_body(
    number: int, turn: ChatMessage, length: TokenCounts, request: ChatRequest
) -> bytes:
    """Yield the whole turn as one delta, then its end."""
    head = _head(number, "chat.completion.chunk", request.model)
    delta = _message(turn)
    if turn.calls:
        delta["tool_calls"] = [{"index": n} | each for n, each in enumerate(delta["tool_calls"])]
    chunks: list[dict[str, Any]] = [
        head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        head | {"choices": [{"index": 0, "delta": {}, "finish_reason": _end(turn, length)}]},
    ]
    if request.usage:
        chunks.append(head | {"choices": [], "usage": _usage(length)})
    events = [msgspec.json.encode(chunk) for chunk in chunks] + [b"[DONE]"]
    return b"".join(b"data: " + event + b"\n\n" for event in events)


def plain_message(each: ChatMessage) -> dict[str, Any]:
    """Return a message as JSON values, for the user's reward."""
    if each.role == "assistant":
        return _message(each)
    told = {"role": each.role, "content": each.content, "name": each.name}
    return {name: value for name, value in told.items() if value or name == "content"} | (
        {"tool_call_id": each.answers} if each.answers else {}
    )


def _message(turn: ChatMessage) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.content or None}
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": each.call_id,
                "type": "function",
                "function": {
                    "name": each.name,
                    "arguments": json.dumps(each.arguments, ensure_ascii=False),
                },
            }
            for each in turn.calls
        ]
    else:
        message["content"] = turn.content
    return message


def _end(turn: ChatMessage, length: TokenCounts) -> str:
    if turn.calls:
        return "tool_calls"
    return "length" if length.cut else "stop"


def _head(number: int, kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": int(time.time()), "model": model}


def _usage(length: TokenCounts) -> dict[str, int]:
    return {
        "prompt_tokens": length.prompt,
        "completion_tokens": length.completion,
        "total_tokens": length.prompt + length.completion,
    }


def _read_message(number: int, message: _Message) -> ChatMessage:
    where = f"messages[{number}]"
    if message.role not in ROLES:
        raise ChatRefused(where, f"role {message.role[:20]!r}; known: {', '.join(ROLES)}")
    parts = message.content if isinstance(message.content, list) else ()
    for part in parts:
        if part.type != "text":
            raise ChatRefused(
                where, f"content of type {part.type[:20]!r}; text alone is understood"
            )
    text = message.content if isinstance(message.content, str) else ""
    return ChatMessage(
        role=ROLES[message.role],
        content=text or "".join(part.text for part in parts),
        name=message.name or "",
        calls=tuple(
            ChatCall(each.id, each.function.name, _arguments(each.function.arguments))
            for each in message.tool_calls or ()
        ),
        answers=message.tool_call_id or "",
    )


def _arguments(text: str | None) -> Any:
    try:
        return msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return text


def _tool(number: int, each: _Item) -> Tool:
    if each.type != "function":
        raise ChatRefused(
            f"tools[{number}]", f"type {each.type[:20]!r}; function alone is understood"
        )
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    function = each.function
    return Tool(function.name, function.description or "", function.parameters or empty)


def _field(message: str) -> str:
    """Return the field in an error of msgspec: `$.messages[2].role`, required field `messages`."""
    match = re.search(r"`\$\.([^`]+)`", message) or re.search(r"field `([^`]*)`", message)
    return match[1] if match else "body"
