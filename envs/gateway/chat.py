"""OpenAI's Chat Completions: POST /v1/chat/completions."""

import json
import time
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
    decode_arguments,
    decode_request,
    function_tool,
    join_texts,
    require_known,
    stop_texts,
)

PATH = "/v1/chat/completions"
ROLES = {"developer": "system"} | {name: name for name in ("system", "user", "assistant", "tool")}
FIELDS = RequestFields(
    read=frozenset(
        {"messages", "tools", "stream", "stream_options", "model", "parallel_tool_calls"}
        | {"max_tokens", "max_completion_tokens", "stop", "n", "logprobs", "response_format"}
    ),
    unused=frozenset(
        {"user", "metadata", "store", "service_tier", "safety_identifier"}
        | {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"}
    ),
    tuning=frozenset(
        {"temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "reasoning_effort"}
        | {"frequency_penalty", "presence_penalty", "repetition_penalty", "verbosity"}
    ),
    fixed={
        "best_of": (None, 1),
        "top_logprobs": (None, 0),
        "functions": (None, []),
        "function_call": (None, "none", "auto"),
        "tool_choice": (None, "auto", "required"),
        "modalities": (None, ["text"]),
        "audio": (None,),
        "prediction": (None,),
        "moderation": (None,),
        "web_search_options": (None,),
        "prompt_logprobs": (None,),
    },
)

MOST_TURNS = 64  # of one reply
FORMATS = ("text", "json_object")

Count = Annotated[int, Meta(ge=1)]


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    arguments: str | None = None


class _Item(msgspec.Struct):
    function: _Function
    id: str = ""
    type: str = "function"


class _Message(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[_Item] | None = None
    tool_call_id: str | None = None


class _Stream(msgspec.Struct):
    include_usage: bool = False


class _Format(msgspec.Struct):
    type: str


class _Body(msgspec.Struct):
    messages: list[_Message]
    model: str = MODEL
    tools: list[_Item] | None = None
    stream: bool | None = None
    stream_options: _Stream | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_TURNS)] | None = None
    logprobs: bool | None = None
    response_format: _Format | None = None


def read(body: bytes) -> DialogueRequest:
    """Parse the request in an HTTP body. Raises RequestRefused."""
    fields, typed = decode_request(body, _Body)
    if not typed.tools:
        fields.pop("tool_choice", None)  # without tools there is nothing to choose
    form = typed.response_format.type if typed.response_format else "text"
    require_known("response_format", "type", form, FORMATS)
    limits = [each for each in (typed.max_tokens, typed.max_completion_tokens) if each]
    return DialogueRequest(
        messages=tuple(_read_message(n, message) for n, message in enumerate(typed.messages)),
        tools=tuple(_tool(n, each) for n, each in enumerate(typed.tools or ())),
        stream=bool(typed.stream),
        usage=bool(typed.stream_options and typed.stream_options.include_usage),
        single=typed.parallel_tool_calls is False,
        must_call=fields.get("tool_choice") == "required",
        must_json=form == "json_object",
        count=typed.n or 1,
        model=typed.model,
        terms=TurnTerms(
            min(limits, default=None),
            stop_texts("stop", typed.stop),
            logprobs=bool(typed.logprobs),
        ),
        ignored=FIELDS.ignored(fields),
        tuning={name: fields[name] for name in FIELDS.tuning if fields.get(name) is not None},
    )


def answer(reply: DialogueReply) -> bytes:
    """Return the body of a reply: JSON, or server-sent events if streamed."""
    if reply.request.stream:
        return _stream_body(reply)
    choices = [
        {
            "index": n,
            "message": _message(turn.message),
            "logprobs": _logprobs(turn),
            "finish_reason": _end(turn),
        }
        for n, turn in enumerate(reply.turns)
    ]
    head = _head(reply, "chat.completion")
    return msgspec.json.encode(head | {"choices": choices, "usage": _usage(reply)})


def _stream_body(reply: DialogueReply) -> bytes:
    """Return each turn as one delta, then its end."""
    head = _head(reply, "chat.completion.chunk")
    chunks: list[dict[str, Any]] = []
    for index, turn in enumerate(reply.turns):
        delta = _message(turn.message)
        if turn.message.calls:
            calls = [{"index": n} | each for n, each in enumerate(delta["tool_calls"])]
            delta["tool_calls"] = calls
        for part, end in ((delta, None), ({}, _end(turn))):
            choice = {"index": index, "delta": part, "finish_reason": end}
            if part and turn.tokens is not None:
                choice["logprobs"] = _logprobs(turn)
            chunks.append(head | {"choices": [choice]})
    if reply.request.usage:
        chunks.append(head | {"choices": [], "usage": _usage(reply)})
    events = [msgspec.json.encode(chunk) for chunk in chunks] + [b"[DONE]"]
    return b"".join(b"data: " + event + b"\n\n" for event in events)


def plain_message(each: DialogueMessage) -> dict[str, Any]:
    """Return a message as JSON values, for the user's reward."""
    if each.role == "assistant":
        return _message(each)
    fields = {"role": each.role, "content": each.content, "name": each.name}
    return {name: value for name, value in fields.items() if value or name == "content"} | (
        {"tool_call_id": each.answers} if each.answers else {}
    )


def _message(turn: DialogueMessage) -> dict[str, Any]:
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


def _logprobs(turn: DialogueTurn) -> dict[str, Any] | None:
    """Return the tokens of the turn's whole text, with its calls; of others nothing is known."""
    if turn.tokens is None:
        return None
    content = [
        {
            "token": each.text,
            "bytes": list(each.text.encode()),
            "logprob": each.logprob,
            "top_logprobs": [],
        }
        for each in turn.tokens
    ]
    return {"content": content, "refusal": None}


def _end(turn: DialogueTurn) -> str:
    if turn.message.calls:
        return "tool_calls"
    return "length" if turn.counts.cut else "stop"


def _head(reply: DialogueReply, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply.number}",
        "object": kind,
        "created": int(time.time()),
        "model": reply.request.model,
    }


def _usage(reply: DialogueReply) -> dict[str, int]:
    prompt = reply.turn.counts.prompt
    completion = sum(turn.counts.completion for turn in reply.turns)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _read_message(number: int, message: _Message) -> DialogueMessage:
    where = f"messages[{number}]"
    require_known(where, "role", message.role, ROLES)
    return DialogueMessage(
        role=ROLES[message.role],
        content=join_texts(where, message.content),
        name=message.name or "",
        calls=tuple(
            DialogueCall(each.id, each.function.name, decode_arguments(each.function.arguments))
            for each in message.tool_calls or ()
        ),
        answers=message.tool_call_id or "",
    )


def _tool(number: int, each: _Item) -> Tool:
    require_known(f"tools[{number}]", "type", each.type, ("function",))
    function = each.function
    return function_tool(function.name, function.description, function.parameters)
