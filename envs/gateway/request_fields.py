"""Decodes the JSON of a request and decides what happens to each of its fields.

A field that would change the kind of answer is refused by its name, and so is an unknown one. A
field that only tunes the sampling is ignored, because training needs the run's own distribution.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from agentrl.core.errors import nearest
from agentrl.envs.contract import Tool
from agentrl.envs.gateway.messages import RequestRefused

T = TypeVar("T")

MAX_BODY = 4 * 1024 * 1024  # bytes
MOST_STOPS = 16  # texts at which one turn may end


@dataclass(frozen=True, slots=True)
class RequestFields:
    """The fields of an API.

    `read`: translated. `unused`: without effect on the answer. `tuning`: ignored, with a warning.
    `fixed`: understood with these values alone, which mean what happens anyway.
    """

    read: frozenset[str]
    unused: frozenset[str]
    tuning: frozenset[str]
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def ignored(self, fields: Mapping[str, Any]) -> frozenset[str]:
        """Return the tuning fields in use. Raises RequestRefused for one that is not supported."""
        known = self.read | self.unused | self.tuning | self.fixed.keys()
        if unknown := sorted(fields.keys() - known):
            more = f" (also unknown: {', '.join(unknown[1:6])})" if unknown[1:] else ""
            text = f"unknown parameter{nearest(unknown[0], known)}{more}"
            raise RequestRefused(unknown[0], text)
        for name, values in self.fixed.items():
            if fields.get(name) not in values:
                usable = " or ".join(json.dumps(each) for each in values if each is not None)
                use = f"use {usable}" if usable else "leave it out"
                raise RequestRefused(
                    name, f"{json.dumps(fields[name])[:60]} is not supported; {use}"
                )
        return frozenset(name for name in self.tuning if fields.get(name) is not None)


class ContentPart(msgspec.Struct):
    """A part of a message's content; of other parts than texts only the type is read."""

    type: str
    text: str = ""


def decode_request(body: bytes, kind: type[T]) -> tuple[dict[str, Any], T]:
    """Return the fields of a body, plain and typed. Raises RequestRefused."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
        return fields, convert_fields(fields, kind)
    except msgspec.ValidationError as error:
        raise RequestRefused("body", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefused("body", f"not JSON: {error}") from error


def convert_fields(fields: Mapping[str, Any], kind: type[T]) -> T:
    """Return the fields as a Struct. Raises RequestRefused that names the wrong one."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise RequestRefused(_field(str(error)), str(error)) from error


def require_known(where: str, what: str, given: str, known: Collection[str]) -> None:
    """Raise RequestRefused unless `given` is one of the known. `what`: names it, such as role."""
    if given not in known:
        text = f"{what} {given[:20]!r} is not supported; known: {', '.join(known)}"
        raise RequestRefused(where, text)


def join_texts(
    where: str, content: str | Sequence[ContentPart] | None, types: Collection[str] = ("text",)
) -> str:
    """Return the text of a content. Raises RequestRefused for a part of another type."""
    if isinstance(content, str):
        return content
    for part in content or ():
        require_known(where, "content of type", part.type, types)
    return "".join(part.text for part in content or ())


def function_tool(name: str, description: str | None, schema: Mapping[str, Any] | None) -> Tool:
    """Return a tool; without a schema its calls have no arguments."""
    return Tool(name, description or "", schema or {"type": "object", "properties": {}})


def decode_arguments(text: str | None) -> Any:
    """Return the arguments of a call; the text itself if it is not JSON."""
    try:
        return msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return text


def is_json_object(text: str) -> bool:
    """Return whether a text is one JSON object."""
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def stop_texts(name: str, value: str | list[str] | None) -> tuple[str, ...]:
    """Return the texts at which a turn ends. Raises RequestRefused for an empty one."""
    texts = (value,) if isinstance(value, str) else tuple(value or ())
    if len(texts) > MOST_STOPS or not all(texts):
        raise RequestRefused(name, f"must be at most {MOST_STOPS} texts, none of them empty")
    return texts


def event_lines(events: list[dict[str, Any]]) -> bytes:
    """Return server-sent events, each named after its `type`."""
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
        for event in events
    )


def _field(message: str) -> str:
    """Return the field in an error of msgspec: `$.messages[2].role`, required field `messages`."""
    match = re.search(r"`\$\.([^`]+)`", message) or re.search(r"field `([^`]*)`", message)
    return match[1] if match else "body"
