"""Converts assistant text to tool calls and back, in the model's format.

    plain    name{"argument":"value"}
    hermes   <tool_call>{"name": "name", "arguments": {…}}</tool_call>       (Qwen; SmolLM2: a list)
    qwen_xml <tool_call><function=name><parameter=k>v</parameter></function></tool_call>
                                                              (Qwen3-Coder, a line for each tag)
    glm      <tool_call>name\\n<arg_key>k</arg_key>\\n<arg_value>v</arg_value>\\n</tool_call>
    json     {"name": "name", "arguments": {…}}, or a list of such               (Llama 3, Mistral)

`arguments` may be named `parameters`, and may be a JSON string. In hermes and json, a call may have
the shape of OpenAI's API: {"type": "function", "function": {"name": …, "arguments": …}}.

Text around a call is ignored, including thoughts (`<think>…</think>`). The call is validated
against its tool's schema: type, enum, const, anyOf, items, prefixItems, properties, required,
additionalProperties. `parse` never raises. It takes linear time: after many malformed calls it
ignores the rest.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from agentrl.envs.contract import Tool, ToolCall
from agentrl.workers.conversation.strict_json import (
    DECODER,
    check_value,
    collect_pairs,
    compact,
    read_object,
    read_objects,
    read_whole_object,
    shorten,
    skip_blanks,
)
from agentrl.workers.conversation.tool_schema import check_call, find_fault, keywords

Style = Literal["plain", "hermes", "qwen_xml", "glm", "json"]
STYLES: tuple[Style, ...] = (
    "qwen_xml",
    "hermes",
    "glm",
    "json",
    "plain",
)  # the most specific first

LEAST_BUDGET = 1 << 16
COUNTED_AT_ONCE = 64  # characters, while another one is parsed
NESTED_CHARACTERS = 1 << 12  # read, at least, before nesting is found to be too deep

_NAME = re.compile(r"(?<![\w.-])([A-Za-z_][\w.-]*)\{")
_THOUGHT, _THOUGHT_END = "<think>", "</think>"
_STAND_IN = "\ue000" * len(_THOUGHT_END)
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_CALLED, _BRACE = re.compile(_CALL), re.compile(r"\{")
_FUNCTION, _FUNCTION_END = re.compile(r"<function=([^<>\n]*)>"), "</function>"
_PARAMETER, _PARAMETER_END = re.compile(r"\s*<parameter=([^>\n]*)>"), "</parameter>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_PYTHON = {"True": True, "False": False, "None": None}
_LOOKS_NAMED = re.compile(r'\{\s*"name"\s*:')


def parse(text: str, tools: Sequence[Tool], style: Style) -> list[ToolCall] | str:
    """Return the calls in an assistant's text in order, or what it says if it has none.

    A call that is malformed, unknown or does not fit its schema has `error` set.
    """
    known = {tool.name: tool for tool in tools}
    at = _begin(text, known, style)
    calls = [check_call(call, known) for call in _READ[style](text, known, at)]
    return calls or without_thoughts(text)


def without_thoughts(text: str) -> str:
    """Return a text without its thoughts, which end with the text if they are not closed."""
    if _THOUGHT not in text and _THOUGHT_END not in text:
        return text
    at = _after_thought(text)
    parts = []
    while (thought := text.find(_THOUGHT, at)) >= 0:
        parts.append(text[at:thought])
        end = text.find(_THOUGHT_END, thought)
        at = len(text) if end < 0 else end + len(_THOUGHT_END)
    return "".join([*parts, text[at:]]).strip()


def render(call: ToolCall, style: Style) -> str:
    """Render a call as text that `parse` reads."""
    if style == "plain":
        return call.name + compact(call.arguments)
    if style == "glm":
        pairs = (
            f"<arg_key>{key}</arg_key>\n<arg_value>{_bare(value)}</arg_value>\n"
            for key, value in call.arguments.items()
        )
        return f"<tool_call>{call.name}\n{''.join(pairs)}</tool_call>"
    if style == "qwen_xml":
        pairs = (
            f"<parameter={key}>\n{_bare(value)}\n</parameter>\n"
            for key, value in call.arguments.items()
        )
        return f"<tool_call>\n<function={call.name}>\n{''.join(pairs)}</function>\n</tool_call>"
    named = {"name": call.name, "arguments": dict(call.arguments)}
    text = json.dumps(named, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>" if style == "hermes" else text


def join_calls(content: str | None, calls: Iterable[str]) -> str:
    """Join a text and rendered calls to a turn, apart: a word would join a call's name."""
    before, after = content or "", "".join(calls)
    return before + ("\n" if after and before and not before[-1].isspace() else "") + after


def _plain_calls(text: str, known: Mapping[str, Tool], at: int) -> Iterator[ToolCall]:
    """Find calls `name{…}`: the name is a tool's, or a JSON object follows it."""
    budget = _budget(text)
    while budget > 0 and (match := _find_opening(text, _NAME, at)):
        name, at = match.group(1), match.end()
        try:
            arguments, at = read_object(text, match.end() - 1)
        except ValueError as error:
            budget -= _read_in_vain(error, at)
            if name in known:
                yield ToolCall(name, {}, f"{name}: arguments are not JSON: {error}")
        else:
            yield ToolCall(name, arguments)


def _hermes_calls(text: str, _known: Mapping[str, Tool], at: int) -> Iterator[ToolCall]:
    budget = _budget(text)
    while budget > 0 and (match := _find_opening(text, _CALLED, at)):
        at = match.end()
        try:
            values, at = read_objects(text, skip_blanks(text, at))
        except ValueError as error:
            budget -= _read_in_vain(error, at)
            yield ToolCall("", {}, f"the call is not JSON: {error}")
        else:
            yield from (_parse_named(_unwrapped(value)) for value in values)


def _xml_calls(text: str, known: Mapping[str, Tool], at: int) -> Iterator[ToolCall]:
    """Find calls of Qwen3-Coder, which may omit the outer tags."""
    while match := _find_opening(text, _FUNCTION, at):
        name, at = match.group(1).strip(), match.end()
        following = _FUNCTION.search(text, at)
        body = text[at : following.start() if following else len(text)]
        try:
            arguments, length = _xml_arguments(body, known.get(name))
        except ValueError as error:
            yield ToolCall(name, {}, f"{shorten(name)}: {error}")
        else:
            at += length
            yield ToolCall(name, arguments)


def _xml_arguments(body: str, tool: Tool | None) -> tuple[dict[str, Any], int]:
    """Return the parameters and the end of the function. Raises ValueError."""
    properties = tool.parameters.get("properties", {}) if tool else {}
    found, at = [], 0
    while match := _PARAMETER.match(body, at):
        key, begin = match.group(1).strip(), match.end()
        end = body.find(_PARAMETER_END, begin)
        if end < 0:
            raise ValueError(f"{shorten(key)} has no end")
        value = body[begin:end].removeprefix("\n").removesuffix("\n")
        found.append((key, _parse_typed(value, properties.get(key, {}))))
        at = end + len(_PARAMETER_END)
    at = skip_blanks(body, at)
    if not body.startswith(_FUNCTION_END, at):
        raise ValueError(
            "the call was cut off"
            if at == len(body)
            else "expected a parameter or the end of the function"
        )
    arguments = collect_pairs(found)
    check_value(arguments)
    return arguments, at + len(_FUNCTION_END)


def _glm_calls(text: str, known: Mapping[str, Tool], at: int) -> Iterator[ToolCall]:
    while match := _find_opening(text, _CALLED, at):
        following = text.find(_CALL, match.end())
        body = text[match.end() : following if following >= 0 else len(text)]
        body, ended, _ = body.partition(_CALL_END)
        at = match.end() + len(body)
        head, *pairs = body.split("<arg_key>")
        name = head.strip()
        try:
            if not ended:
                raise ValueError("the call was cut off")
            yield ToolCall(name, _glm_arguments(pairs, known.get(name)))
        except ValueError as error:
            yield ToolCall(name, {}, f"{shorten(name)}: {error}")


def _json_calls(text: str, known: Mapping[str, Tool], at: int) -> Iterator[ToolCall]:
    """Find every outermost JSON object with a function name or arguments."""
    budget = _budget(text)
    while budget > 0 and (match := _find_opening(text, _BRACE, at)):
        at = match.start()
        try:
            value, at = read_object(text, at)
        except ValueError as error:
            budget -= _read_in_vain(error, at)
            if _LOOKS_NAMED.match(text, at):
                yield ToolCall("", {}, f"the call is not JSON: {error}")
                at = max(at, getattr(error, "pos", at))
            at += 1
            continue
        value = _unwrapped(value)
        names = "arguments" in value or "parameters" in value
        if "name" in value and (names or value["name"] in tuple(known)):
            yield _parse_named(value)


_READ = {
    "plain": _plain_calls,
    "hermes": _hermes_calls,
    "qwen_xml": _xml_calls,
    "glm": _glm_calls,
    "json": _json_calls,
}


def _begin(text: str, known: Mapping[str, Tool], style: Style) -> int:
    """Return where calls begin: after a thought that the prompt opened.

    An end of a thought within a call that fits its schema is text.
    """
    at = _after_thought(text)
    if not at:
        return 0
    probe = text[: at - len(_THOUGHT_END)] + _STAND_IN + text[at:]
    calls = (check_call(call, known) for call in _READ[style](probe, known, 0))
    said = any(not call.error and _STAND_IN in compact(dict(call.arguments)) for call in calls)
    return 0 if said else at


def _after_thought(text: str) -> int:
    """Return the end of a thought that the prompt opened; 0 if there is none."""
    thought, end, _ = text.partition(_THOUGHT_END)
    return len(thought) + len(end) if end and _THOUGHT not in thought else 0


def _find_opening(text: str, what: re.Pattern[str], at: int) -> re.Match[str] | None:
    """Find the next `what` from `at`, outside of thoughts."""
    match: re.Match[str] | None = None
    while True:
        if match is None or match.start() < at:
            match = what.search(text, at)
        if match is None:
            return None
        thought = text.find(_THOUGHT, at, match.start())
        if thought < 0:
            return match
        end = text.find(_THOUGHT_END, thought)
        if end < 0:
            return None
        at = end + len(_THOUGHT_END)


def _budget(text: str) -> int:
    """Return how many characters may be read without result, which keeps parsing linear."""
    return len(text) + LEAST_BUDGET


def _read_in_vain(error: ValueError, at: int) -> int:
    """Return the characters that were read at `at` without finding an object.

    The error of too deep nesting has no position; the others count lines, which is fast.
    """
    place: int = getattr(error, "pos", at + NESTED_CHARACTERS)
    return max(1, place - at) + place // COUNTED_AT_ONCE


def _unwrapped(value: dict[str, Any]) -> dict[str, Any]:
    """Return the call in a value of OpenAI's API, which wraps it; any other value itself."""
    function = value.get("function")
    if isinstance(function, dict) and "name" in function and "name" not in value:
        return function
    return value


def _parse_named(value: Mapping[str, Any]) -> ToolCall:
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
    if not isinstance(name, str):
        return ToolCall("", {}, "the call has no name")
    if isinstance(arguments, str):
        try:
            arguments = read_whole_object(arguments)
        except ValueError as error:
            return ToolCall(name, {}, f"{shorten(name)}: arguments are not JSON: {error}")
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, f"{shorten(name)}: arguments are no JSON object")
    return ToolCall(name, arguments)


def _bare(value: Any) -> str:
    """Render strings unquoted and other values as JSON."""
    return value if isinstance(value, str) else compact(value)


def _glm_arguments(pairs: Sequence[str], tool: Tool | None) -> dict[str, Any]:
    """Parse the values after each `<arg_key>`. Raises ValueError."""
    properties = tool.parameters.get("properties", {}) if tool else {}
    arguments = []
    for pair in pairs:
        key, named, rest = pair.partition("</arg_key>")
        key, rest = key.strip(), rest.strip()
        if not named or not (rest.startswith(_VALUE) and rest.endswith(_VALUE_END)):
            raise ValueError(f"{shorten(key)} has no value")
        text = rest[len(_VALUE) : -len(_VALUE_END)]
        arguments.append((key, _parse_typed(text, properties.get(key, {}))))
    found = collect_pairs(arguments)
    check_value(found)
    return found


def _parse_typed(text: str, schema: Mapping[str, Any] | bool) -> Any:
    """Parse the output of `_bare`; the schema decides between string and JSON.

    Qwen3-Coder's template writes truth values as Python does.
    """
    if keywords(schema).get("type") == "string":
        return text
    try:
        value = _PYTHON[text] if text in _PYTHON else DECODER.decode(text)
        check_value(value)
    except (ValueError, RecursionError):
        return text
    return text if find_fault(value, schema, "") and not find_fault(text, schema, "") else value
