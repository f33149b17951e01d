"""What the classes of the benchmark have in common: functions by signature, answers, refusals.

A class holds a state and public methods. Each method is a function the agent may call: its name,
parameters and defaults are those of the benchmark's public function documents.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, get_type_hints

import msgspec

from agentrl.envs.contract import Tool

Answer = dict[str, Any]  # JSON values
Number = int | float

_SCHEMAS: Mapping[Any, Mapping[str, Any]] = {
    str: {"type": "string"},
    str | None: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    Number: {"type": "number"},
    list[str]: {"type": "array", "items": {"type": "string"}},
    list[str] | None: {"type": "array", "items": {"type": "string"}},
    list[Number]: {"type": "array", "items": {"type": "number"}},
    dict[str, Any]: {"type": "object", "additionalProperties": True},
}


class RefusedError(Exception):
    """A call that cannot be done; the agent reads why."""


class Api(Protocol):
    """One instance serves one conversation."""

    def state(self) -> Any:
        """What a turn is judged by: JSON values, compared with `==`."""


@dataclass(frozen=True, slots=True)
class Function:
    """A method of a class. `arguments`: a struct that a call's arguments must convert to."""

    tool: Tool
    parameters: tuple[str, ...]
    arguments: type[msgspec.Struct]
    method: Callable[..., Answer]

    def named(self, values: Sequence[Any], names: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, from those by place and those by name. Raises RefusedError."""
        by_place = dict(zip(self.parameters, values, strict=False))
        if len(values) > len(self.parameters) or by_place.keys() & names.keys():
            raise RefusedError(f"{self.tool.name} takes {', '.join(self.parameters) or 'nothing'}")
        return by_place | dict(names)

    def __call__(self, api: Api, given: Mapping[str, Any]) -> Answer:
        """Raises RefusedError where the arguments do not fit, or the method refuses them."""
        try:
            read = msgspec.convert(dict(given), self.arguments)
        except msgspec.ValidationError as error:
            raise RefusedError(f"{self.tool.name}: {error}") from error
        values = {name: getattr(read, name) for name in self.parameters}
        return self.method(api, **values)


def functions(of: type[Api]) -> dict[str, Function]:
    """The public methods of a class, by name; a method's docstring is the tool's description."""
    methods = inspect.getmembers(of, inspect.isfunction)
    names = [name for name, _ in methods if not name.startswith("_") and name != "state"]
    return {name: _function(name, getattr(of, name)) for name in names}


def _function(name: str, method: Callable[..., Answer]) -> Function:
    hints = get_type_hints(method)
    given = [each for each in inspect.signature(method).parameters.values() if each.name != "self"]
    required = [each.name for each in given if each.default is each.empty]
    fields: list[Any] = [
        (each.name, hints[each.name], *([] if each.name in required else [each.default]))
        for each in given
    ]
    schema = {
        "type": "object",
        "properties": {each.name: dict(_SCHEMAS[hints[each.name]]) for each in given},
        "required": required,
        "additionalProperties": False,
    }
    return Function(
        Tool(name, inspect.getdoc(method) or name, schema),
        tuple(each.name for each in given),
        msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True),
        method,
    )
