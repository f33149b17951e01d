"""Anthropic's Messages: POST /v1/messages.

A turn is one block of `content` for its text, or one for each of its calls.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from agentrl.envs.contract import Tool, TurnTerms
from agentrl.envs.gateway.messages import (
    MODEL,
    DialogueCall,
    DialogueMessage,
    DialogueReply,
    DialogueRequest,
    DialogueTurn,
)
from agentrl.envs.gateway.request_fields import (
    ContentPart,
    RequestFields,
    decode_request,
    event_lines,
    function_tool,
    join_texts,
    require_known,
    stop_texts,
)

PATH = "/v1/messages"
CONTENT = {  # of each role
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use"),
    "system": ("text",),
}
FIELDS = RequestFields(
    read=frozenset(
        {"messages", "system", "model", "max_tokens", "stop_sequences", "stream"}
        | {"tools", "tool_choice"}
    ),
    unused=frozenset(
        {"cache_control", "metadata", "service_tier", "inference_geo", "speed", "diagnostics"}
        | {"user_profile_id", "workspace_id"}
    ),
    tuning=frozenset({"temperature", "top_p", "top_k"}),
    fixed={
        "thinking": (None, {"type": "disabled"}),
        "output_config": (None, {}),
        "prefill": (None,),
        "container": (None,),
        "context_management": (None,),
        "mcp_servers": (None, []),
    },
)


class _Block(ContentPart):
    """A block of content, by its `type`. `cache_control` and the like are passed over."""

    id: str = ""
    name: str = ""
    input: dict[str, Any] | None = None
    tool_use_id: str = ""
    content: "str | list[_Block]" = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Block]


class _Tool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class _Choice(msgspec.Struct):
    type: str
    disable_parallel_tool_use: bool | None = None


class _Body(msgspec.Struct):
    messages: list[_Message]
    max_tokens: Annotated[int, Meta(ge=1)]
    model: str = MODEL
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None


def read(body: bytes) -> DialogueRequest:
    """Parse the request in an HTTP body. Raises RequestRefused."""
    fields, typed = decode_request(body, _Body)
    ignored, choice = FIELDS.ignored(fields), typed.tool_choice
    if choice is not None and typed.tools:
        require_known("tool_choice", "type", choice.type, ("auto", "any"))
    system = join_texts("system", typed.system)
    messages = [DialogueMessage("system", system)] if system else []
    for number, message in enumerate(typed.messages):
        messages += _read_message(f"messages[{number}]", message)
    return DialogueRequest(
        messages=tuple(messages),
        tools=tuple(_tool(n, each) for n, each in enumerate(typed.tools or ())),
        stream=bool(typed.stream),
        single=bool(choice and choice.disable_parallel_tool_use),
        must_call=bool(choice and typed.tools and choice.type == "any"),
        model=typed.model,
        terms=TurnTerms(typed.max_tokens, stop_texts("stop_sequences", typed.stop_sequences)),
        ignored=ignored,
    )


def answer(reply: DialogueReply) -> bytes:
    """Return the body of a reply: JSON, or server-sent events if streamed."""
    if not reply.request.stream:
        return msgspec.json.encode(_message(reply))
    return event_lines(list(_events(reply)))


def _events(reply: DialogueReply) -> Iterator[dict[str, Any]]:
    """Yield the whole turn, one delta for each block."""
    whole = _message(reply)
    empty_message: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    usage = whole["usage"] | {"output_tokens": 0}
    yield {"type": "message_start", "message": whole | empty_message | {"usage": usage}}
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty: dict[str, Any] = {"text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            empty, text = {"input": {}}, msgspec.json.encode(block["input"]).decode()
            delta = {"type": "input_json_delta", "partial_json": text}
        yield {"type": "content_block_start", "index": index, "content_block": block | empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": end, "usage": whole["usage"]}
    yield {"type": "message_stop"}


def _message(reply: DialogueReply) -> dict[str, Any]:
    turn = reply.turn
    message, counts = turn.message, turn.counts
    content = [
        {"type": "tool_use", "id": each.call_id, "name": each.name, "input": each.arguments}
        for each in message.calls
    ]
    return {
        "id": f"msg_{reply.number}",
        "type": "message",
        "role": "assistant",
        "model": reply.request.model,
        "content": content or [{"type": "text", "text": message.content}],
        "stop_reason": _stop_reason(turn),
        "stop_sequence": turn.stopped_at or None,
        "usage": {"input_tokens": counts.prompt, "output_tokens": counts.completion},
    }


def _stop_reason(turn: DialogueTurn) -> str:
    if turn.message.calls:
        return "tool_use"
    if turn.stopped_at:
        return "stop_sequence"
    return "max_tokens" if turn.counts.cut else "end_turn"


def _read_message(where: str, message: _Message) -> Iterator[DialogueMessage]:
    """Yield the messages of one: each result of a tool is a message of its own."""
    require_known(where, "role", message.role, CONTENT)
    if isinstance(message.content, str):
        yield DialogueMessage(message.role, message.content)
        return
    for block in message.content:
        require_known(where, "content of type", block.type, CONTENT[message.role])
    results = [block for block in message.content if block.type == "tool_result"]
    for block in results:
        yield DialogueMessage("tool", join_texts(where, block.content), answers=block.tool_use_id)
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = tuple(
        DialogueCall(block.id, block.name, block.input or {})
        for block in message.content
        if block.type == "tool_use"
    )
    if text or not results:
        yield DialogueMessage(message.role, text, calls=calls)


def _tool(number: int, each: _Tool) -> Tool:
    require_known(f"tools[{number}]", "type", each.type or "custom", ("custom",))
    return function_tool(each.name, each.description, each.input_schema)
