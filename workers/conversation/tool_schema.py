"""Compare a tool call with the JSON schema of its tool."""

from collections.abc import Mapping
from typing import Any

from agentrl.envs.contract import Tool, ToolCall
from agentrl.workers.conversation.strict_json import shorten

KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def check_call(call: ToolCall, tools: Mapping[str, Tool]) -> ToolCall:
    """Return the call with its first violation of the tool's schema as `error`."""
    if call.error:
        return ToolCall(shorten(call.name), call.arguments, call.error)
    if call.name not in tools:
        name = shorten(call.name)
        return ToolCall(name, {}, f"no tool {name!r}; tools: {', '.join(tools)}")
    fault = find_fault(call.arguments, tools[call.name].parameters, "")
    return ToolCall(call.name, call.arguments, f"{call.name}: {fault}" if fault else "")


def keywords(schema: Any) -> Mapping[str, Any]:
    """Return the keywords of a JSON schema; one that is `true` or `false` has none."""
    return schema if isinstance(schema, Mapping) else {}


def find_fault(value: Any, schema: Mapping[str, Any] | bool, where: str) -> str:
    """Return the first violation of a JSON schema; empty: the value fits."""
    here = where.lstrip(".") or "arguments"
    if isinstance(schema, bool):
        return "" if schema else f"{here} is not allowed"
    if "anyOf" in schema:
        fits = any(not find_fault(value, each, where) for each in schema["anyOf"])
        return "" if fits else f"{here} is none of what it may be"
    kind = schema.get("type")
    kinds = [kind] if isinstance(kind, str) else kind or list(KINDS)
    allowed = tuple(each for name in kinds for each in KINDS.get(name, ()))
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        return f"{here} is not {' or '.join(kinds)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{here} is none of {', '.join(map(str, schema['enum']))}"
    if "const" in schema and value != schema["const"]:
        return f"{here} is not {schema['const']}"
    faults = (
        find_fault(each, _item_schema(schema, n), f"{where}[{n}]")
        for n, each in enumerate(value if isinstance(value, list) else ())
    )
    return next(filter(None, faults), "") or _object_fault(value, schema, where)


def _item_schema(schema: Mapping[str, Any], place: int) -> Any:
    """Return the schema of an item; `prefixItems`, in draft 7 a list of `items`, has the first."""
    first, rest = schema.get("prefixItems", ()), schema.get("items", {})
    if isinstance(rest, list):
        first, rest = rest, schema.get("additionalItems", {})
    return first[place] if place < len(first) else rest


def _object_fault(value: Any, schema: Mapping[str, Any], where: str) -> str:
    """Check an object. `properties` lists all keys, unless `additionalProperties` allows more."""
    if not isinstance(value, dict):
        return ""
    for name in schema.get("required", ()):
        if name not in value:
            return f"{f'{where}.{name}'.lstrip('.')} is missing"
    properties = schema.get("properties")
    more = schema.get("additionalProperties", properties is None)
    for name, each in value.items():
        inner = f"{where}.{shorten(name)}"
        rule = (properties or {}).get(name, more)
        if rule is False:
            return f"{inner.lstrip('.')} is not a parameter"
        if fault := find_fault(each, rule, inner):
            return fault
    return ""
