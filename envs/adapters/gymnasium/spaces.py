"""Gymnasium's spaces as text and JSON: observations that an agent reads, actions that it writes."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agentrl.core.errors import ItemError

DIGITS = 4  # of a number that an agent reads
_HIGHLIGHTED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def schema(space: Space[Any], names: Sequence[str]) -> Mapping[str, Any]:
    """The JSON schema of an action. `names`: of a Discrete space's actions, in their order.

    Raises ItemError for a space that has none, and for names that are not one an action.
    """
    if names and not (isinstance(space, spaces.Discrete) and len(names) == space.n):
        raise ItemError(f"option actions: {len(names)} names do not fit the action space {space}")
    if names:
        return {"type": "string", "enum": list(names)}
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        return {"type": "integer", "minimum": first, "maximum": first + int(space.n) - 1}
    if isinstance(space, spaces.Text):
        return {"type": "string"}
    if isinstance(space, spaces.Box):
        kind = "integer" if np.issubdtype(space.dtype, np.integer) else "number"
        return _nested({"type": kind}, space.shape)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return _nested({"type": "integer"}, space.shape)
    raise ItemError(f"the action space {space} cannot be written as one JSON value")


def action(space: Space[Any], names: Sequence[str], value: Any) -> Any:
    """The action that an agent wrote. Raises ValueError where it is none of the space."""
    if names:
        if value not in names:
            raise ValueError(f"{value!r} is not one of {', '.join(names)}")
        return space.from_jsonable([int(space.start) + names.index(value)])[0]  # type: ignore[attr-defined]
    try:
        read = space.from_jsonable([value])[0]
    except (TypeError, ValueError, OverflowError, IndexError):
        read = None
    if read is None or isinstance(value, bool) or not space.contains(read):
        raise ValueError(f"{str(value)[:100]!r} is not an action of {space}")
    return read


def written(observation: Any) -> str:
    """An observation as text: a text as it is, everything else as JSON."""
    if isinstance(observation, str):
        return observation
    return json.dumps(_plain(observation), ensure_ascii=False)


def drawn(rendered: str) -> str:
    """A rendered text without colours: what was highlighted stands in brackets."""
    return _ESCAPES.sub("", _HIGHLIGHTED.sub(r"[\1]", rendered)).strip("\n")


def _nested(inner: Mapping[str, Any], shape: Sequence[int]) -> Mapping[str, Any]:
    for size in reversed(shape):
        inner = {"type": "array", "items": inner, "minItems": size, "maxItems": size}
    return inner


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value if isinstance(value, int | str | None) else str(value)
