"""A policy that knows nothing but the schemas of its tools."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from agentrl.envs.contract import Message, Tool, ToolCall

SPAN = 9  # of numbers without bounds
ANYTHING = "0"  # where a schema leaves it open


class RandomToolCalls:
    """An Expert that calls tools at random, with arguments that fit their schemas.

    Without tools it says a digit.
    """

    def __init__(self, tools: Sequence[Tool], seed: int) -> None:
        self._tools = tools
        self._random = Random(seed)
        self._digit = str(seed % 10)

    def act(self, messages: Sequence[Message]) -> ToolCall | str:  # noqa: ARG002
        if not self._tools:
            return self._digit
        tool = self._random.choice(self._tools)
        return ToolCall(tool.name, self._object(tool.parameters))

    def _value(self, schema: Any) -> Any:
        given = schema if isinstance(schema, Mapping) else {}  # it may be `true`
        if "enum" in given:
            return self._random.choice(given["enum"])
        if "const" in given:
            return given["const"]
        if "anyOf" in given:
            return self._value(self._random.choice(given["anyOf"]))
        kind = given.get("type")
        makers: Mapping[Any, Callable[[Mapping[str, Any]], Any]] = {
            "integer": lambda each: self._random.randint(*map(round, _bounds(each))),
            "number": lambda each: self._random.uniform(*_bounds(each)),
            "boolean": lambda _: True,
            "array": self._array,
            "object": self._object,
            "null": lambda _: None,
        }
        make = makers.get(kind if isinstance(kind, str) else (kind or [None])[0])
        return make(given) if make else ANYTHING

    def _array(self, schema: Mapping[str, Any]) -> list[Any]:
        items = schema.get("prefixItems", schema.get("items", {}))
        if not isinstance(items, list):
            items = [items] * max(schema.get("minItems", 1), 1)
        return [self._value(each) for each in items]

    def _object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        properties = schema.get("properties", {})
        return {name: self._value(each) for name, each in properties.items()}


def _bounds(schema: Mapping[str, Any]) -> tuple[float, float]:
    low = schema.get("minimum", min(0, schema.get("maximum", 0)))
    return low, max(low, schema.get("maximum", low + SPAN))
