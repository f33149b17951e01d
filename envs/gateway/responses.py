"""OpenAI's Responses: POST /v1/responses.

A turn is one item of `output` for its text, or one for each of its calls.
"""

import json
import time
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from agentrl.envs.contract import TurnTerms
from agentrl.envs.gateway.messages import (
    MODEL,
    DialogueCall,
    DialogueMessage,
    DialogueReply,
    DialogueRequest,
    RequestRefused,
    TokenCounts,
)
from agentrl.envs.gateway.request_fields import (
    ContentPart,
    RequestFields,
    decode_arguments,
    decode_request,
    event_lines,
    function_tool,
    join_texts,
    require_known,
)

PATH = "/v1/responses"
ROLES = {"developer": "system"} | {name: name for name in ("system", "user", "assistant")}
ITEMS = ("message", "function_call", "function_call_output")
TEXTS = ("input_text", "output_text", "text")  # types of content
PREFIX = "resp_"
FIELDS = RequestFields(
    read=frozenset(
        {"input", "instructions", "model", "tools", "stream", "parallel_tool_calls"}
        | {"max_output_tokens", "previous_response_id"}
    ),
    unused=frozenset(
        {"user", "metadata", "client_metadata", "store", "service_tier", "safety_identifier"}
        | {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "stream_options"}
        | {"include"}
    ),
    tuning=frozenset({"temperature", "top_p", "reasoning"}),
    fixed={
        "background": (None, False),
        "background_options": (None,),
        "context_management": (None, []),
        "conversation": (None,),
        "image": (None,),
        "max_tool_calls": (None,),
        "moderation": (None,),
        "prompt": (None,),
        "text": (None, {}, {"format": {"type": "text"}}),
        "tool_choice": (None, "auto", "required"),
        "top_logprobs": (None, 0),
        "truncation": (None, "disabled"),
    },
)


class _Item(msgspec.Struct):
    """A message, a call or the output of one, by its `type`."""

    type: str = "message"
    role: str = ""
    content: str | list[ContentPart] = ""
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[ContentPart] = ""


class _Tool(msgspec.Struct):
    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Body(msgspec.Struct):
    input: str | list[_Item]
    instructions: str | None = None
    model: str = MODEL
    tools: list[_Tool] | None = None
    stream: bool | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    previous_response_id: str | None = None


def read(body: bytes) -> DialogueRequest:
    """Parse the request in an HTTP body. Raises RequestRefused."""
    fields, typed = decode_request(body, _Body)
    text = fields.get("text")
    if isinstance(text, dict):
        fields["text"] = {name: each for name, each in text.items() if name != "verbosity"}
    offered = typed.tools or []
    tools = [each for each in offered if each.type == "function"]
    if not tools:
        fields.pop("tool_choice", None)  # without tools there is nothing to choose
    left_out = {"tools of other types than function"} if len(tools) < len(offered) else set()
    ignored = FIELDS.ignored(fields) | left_out
    input_ = typed.input
    items = [_Item(role="user", content=input_)] if isinstance(input_, str) else input_
    messages = _messages(items)
    if typed.instructions:
        messages.insert(0, DialogueMessage("system", typed.instructions))
    return DialogueRequest(
        messages=tuple(messages),
        tools=tuple(function_tool(each.name, each.description, each.parameters) for each in tools),
        stream=bool(typed.stream),
        single=typed.parallel_tool_calls is False,
        must_call=fields.get("tool_choice") == "required",
        model=typed.model,
        terms=TurnTerms(typed.max_output_tokens),
        follows=_follows(typed.previous_response_id),
        ignored=ignored,
        echo={
            "instructions": typed.instructions,
            "max_output_tokens": typed.max_output_tokens,
            "metadata": fields.get("metadata") or {},
            "parallel_tool_calls": typed.parallel_tool_calls is not False,
            "previous_response_id": typed.previous_response_id,
            "tool_choice": fields.get("tool_choice") or "auto",
            "tools": fields.get("tools") or [],
        },
    )


def answer(reply: DialogueReply) -> bytes:
    """Return the body of a reply: JSON, or server-sent events if streamed."""
    if not reply.request.stream:
        return msgspec.json.encode(_response(reply))
    events = [{"sequence_number": n} | event for n, event in enumerate(_events(reply))]
    return event_lines(events)


def _events(reply: DialogueReply) -> Iterator[dict[str, Any]]:
    """Yield the whole turn, one delta for each item."""
    whole = _response(reply)
    opening = whole | {"status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": opening}
    yield {"type": "response.in_progress", "response": opening}
    for index, item in enumerate(whole["output"]):
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        at = {"output_index": index}
        running = item | empty | {"status": "in_progress"}
        yield {"type": "response.output_item.added", "item": running} | at
        yield from _deltas(item, at | {"item_id": item["id"]})
        yield {"type": "response.output_item.done", "item": item} | at
    yield {"type": f"response.{whole['status']}", "response": whole}


def _deltas(item: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if item["type"] == "function_call":
        kind, arguments = "response.function_call_arguments", item["arguments"]
        yield {"type": f"{kind}.delta", "delta": arguments} | at
        yield {"type": f"{kind}.done", "arguments": arguments, "name": item["name"]} | at
        return
    part, at = item["content"][0], at | {"content_index": 0}
    text, place = part["text"], at | {"logprobs": []}
    yield {"type": "response.content_part.added", "part": part | {"text": ""}} | at
    yield {"type": "response.output_text.delta", "delta": text} | place
    yield {"type": "response.output_text.done", "text": text} | place
    yield {"type": "response.content_part.done", "part": part} | at


def _response(reply: DialogueReply) -> dict[str, Any]:
    turn = reply.turn
    cut = turn.counts.cut and not turn.message.calls
    created = time.time()
    return {
        "id": f"{PREFIX}{reply.number}",
        "object": "response",
        "created_at": created,
        "completed_at": created,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "model": reply.request.model,
        "output": _output(reply, "incomplete" if cut else "completed"),
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
        "usage": _usage(turn.counts),
        **reply.request.echo,
    }


def _output(reply: DialogueReply, status: str) -> list[dict[str, Any]]:
    message = reply.turn.message
    if message.calls:
        return [
            {
                "type": "function_call",
                "id": f"fc_{each.call_id}",
                "call_id": each.call_id,
                "name": each.name,
                "arguments": json.dumps(each.arguments, ensure_ascii=False),
                "status": status,
            }
            for each in message.calls
        ]
    text = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
    item = {"type": "message", "id": f"msg_{reply.number}", "role": "assistant"}
    return [item | {"status": status, "content": [text]}]


def _usage(counts: TokenCounts) -> dict[str, Any]:
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts.prompt + counts.completion,
    }


def _messages(items: list[_Item]) -> list[DialogueMessage]:
    """Return the messages of items: the calls of one turn follow each other and the turn's text."""
    messages: list[DialogueMessage] = []
    for number, item in enumerate(items):
        where = f"input[{number}]"
        require_known(where, "type", item.type, ITEMS)
        if item.type == "function_call":
            before = messages.pop() if messages and messages[-1].role == "assistant" else _SILENCE
            call = DialogueCall(item.call_id, item.name, decode_arguments(item.arguments))
            calls = (*before.calls, call)
            messages.append(DialogueMessage("assistant", before.content, calls=calls))
        elif item.type == "function_call_output":
            text = join_texts(f"{where}.output", item.output, TEXTS)
            messages.append(DialogueMessage("tool", text, answers=item.call_id))
        else:
            require_known(where, "role", item.role, ROLES)
            text = join_texts(where, item.content, TEXTS)
            messages.append(DialogueMessage(ROLES[item.role], text))
    return messages


_SILENCE = DialogueMessage("assistant", "")


def _follows(response_id: str | None) -> int | None:
    """Return the number of the reply with an id. Raises RequestRefused for an id not of ours."""
    if response_id is None:
        return None
    number = response_id.removeprefix(PREFIX)
    if not number.isdecimal() or not number.isascii() or len(number) > 9:
        raise RequestRefused("previous_response_id", f"no response has the id {response_id[:40]!r}")
    return int(number)
