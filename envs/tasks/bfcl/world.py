"""The classes of one conversation, and the calls that change them."""

import ast
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Tool
from agentrl.envs.tasks.bfcl import files, maths, messages, posts, tickets
from agentrl.envs.tasks.bfcl.api import Answer, Api, Function, RefusedError, functions

CLASSES: Mapping[str, tuple[type[Api], Callable[[Mapping[str, Any]], Api]]] = {
    "GorillaFileSystem": (files.Files, files.read),
    "MathAPI": (maths.Maths, maths.read),
    "MessageAPI": (messages.Messages, messages.read),
    "TicketAPI": (tickets.Tickets, tickets.read),
    "TwitterAPI": (posts.Posts, posts.read),
}


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of the ground truth, its arguments by name: JSON values."""

    name: str
    arguments: dict[str, Any] = {}


@cache
def known() -> Mapping[str, tuple[str, Function]]:
    """Every function by its name, with its class; no two classes share a name."""
    return {
        name: (kind, function)
        for kind, (of, _) in CLASSES.items()
        for name, function in functions(of).items()
    }


class World:
    """Fresh instances of some classes. A call of a class that is not here is refused."""

    def __init__(self, classes: Sequence[str], config: Mapping[str, Mapping[str, Any]]) -> None:
        """Raises ItemError for a class that there is not, and for a state it cannot start in."""
        self._apis: dict[str, Api] = {}
        for kind in classes:
            if kind not in CLASSES:
                raise ItemError(f"bfcl: no class {kind[:40]}; known: {', '.join(CLASSES)}")
            try:
                self._apis[kind] = CLASSES[kind][1](config.get(kind, {}))
            except (msgspec.ValidationError, RecursionError) as error:
                raise ItemError(f"bfcl: {kind}: {error}") from error

    def run(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """A call's answer; one that cannot be done answers with an `error`."""
        kind, function = known().get(name, ("", None))
        if function is None or kind not in self._apis:
            return {"error": f"there is no function {name}"}
        try:
            return function(self._apis[kind], arguments)
        except RefusedError as error:
            return {"error": str(error)}

    def state(self) -> Mapping[str, Any]:
        """JSON values, by class."""
        return {kind: api.state() for kind, api in self._apis.items()}


def tools(classes: Sequence[str]) -> tuple[Tool, ...]:
    """The functions of some classes, as described here."""
    return tuple(function.tool for kind, function in known().values() if kind in classes)


def written(answer: Answer) -> str:
    """An answer as the agent reads it, and as it is compared."""
    return json.dumps(answer, ensure_ascii=False, sort_keys=True)


def parsed(text: str) -> Call:
    """A call written in Python, `f(1, name='value')`. Nothing is evaluated: arguments are literals.

    Raises ItemError.
    """
    where = f"call {text[:80]!r}"
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ItemError(f"{where}: no call of a function")
        if any(each.arg is None for each in call.keywords):
            raise ItemError(f"{where}: only named arguments")
        values = [_plain(ast.literal_eval(each)) for each in call.args]
        names = {str(each.arg): _plain(ast.literal_eval(each.value)) for each in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ItemError(f"{where}: {error}") from error
    _, function = known().get(call.func.id, ("", None))
    if function is None:
        raise ItemError(f"{where}: there is no function {call.func.id}")
    try:
        return Call(call.func.id, function.named(values, names))
    except RefusedError as error:
        raise ItemError(f"{where}: {error}") from error


def _plain(value: Any) -> Any:
    """A literal as a JSON value. Raises ValueError."""
    match value:
        case dict() if all(isinstance(name, str) for name in value):
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
    raise ValueError(f"{type(value).__name__} is no JSON value")
