"""Instances of the benchmark's API classes, and the calls that a policy makes on them.

The benchmark evaluates a call as Python source. Here a documented method of an instance is called
with JSON values, so no text of a policy is ever evaluated, and calls that could take minutes or
gigabytes are answered with an error. Everything else, results and errors, is as in
`execute_multi_turn_func_call` of bfcl-eval.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from decimal import localcontext
from typing import Any

import mpmath

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.bfcl.package import backend, class_tools, load_class

MAX_NODES = 2000  # files and directories; the benchmark's items have up to 126
MAX_DEPTH = 50  # of nested directories
MAX_CHARACTERS = 1_000_000  # in the names and contents of all files
MAX_PRECISION = 1000  # digits
MAX_BITS = 20_000  # of a power; a longer one could not be written as text
FULL = "Error during execution: the disk is full"

_LOCK = threading.Lock()  # the classes set mpmath's precision and share tables


class Simulation:
    """Fresh instances of some API classes."""

    def __init__(
        self,
        classes: Sequence[str],
        config: Mapping[str, Mapping[str, Any]],
        *,
        long_context: bool = False,
    ) -> None:
        """Raises ItemError for an unknown class, and for a state that it cannot load."""
        self.instances: dict[str, Any] = {}
        self._owners: dict[str, Any] = {}
        self.is_full = False
        for name in classes:
            instance = load_class(name)()
            try:
                if name not in backend().STATELESS_CLASSES:
                    scenario = deepcopy(dict(config.get(name, {})))
                    instance._load_scenario(scenario, long_context=long_context)  # noqa: SLF001
                if long_context:  # it holds rows of the package's own tables, which calls change
                    instance = deepcopy(instance)
            except Exception as error:  # an item's content may be anything, and is not checked
                raise ItemError(f"bfcl: {name}: {type(error).__name__}: {error}") from error
            self.instances[name] = instance
            self._owners |= {tool.name: instance for tool in class_tools(name)}
        self._measure_files()
        if self.is_full:
            raise ItemError(f"bfcl: GorillaFileSystem: more than {MAX_NODES} files, or too large")

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Make a call and return its result as text; a failed one returns an error."""
        if name not in self._owners:
            return f"Error during execution: name '{name}' is not defined"
        if self.is_full:
            return FULL
        owner = self._owners[name]
        with _LOCK, localcontext(), mpmath.workdps(mpmath.mp.dps):
            try:
                if owner is self.instances.get("MathAPI"):
                    _refuse_endless(arguments)
                text = _as_text(getattr(owner, name)(**deepcopy(dict(arguments))))
            except Exception as error:  # the benchmark answers whatever a method raises
                text = f"Error during execution: {error}"
        self._measure_files()
        return FULL if self.is_full else text

    def _measure_files(self) -> None:
        """Notice a tree that has become too large to walk: copies of copies double it."""
        if "GorillaFileSystem" in self.instances:
            self.is_full = _is_too_large(self.instances["GorillaFileSystem"].root)


def is_error(result: str) -> bool:
    """Return whether a result says that its call failed."""
    return result.startswith(("Error during execution", '{"error"', "[{'error'"))


def _as_text(result: Any) -> str:
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):  # numbers of mpmath and decimal
            return str(result)
    return str(result)


def _refuse_endless(arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for arithmetic that would take minutes."""
    for name, value in arguments.items():
        if isinstance(value, str) and not name.startswith("unit"):
            raise ValueError(f"{name} must be a number")
    for name in ("precision", "decimal_places"):
        if not abs(arguments.get(name, 0)) <= MAX_PRECISION:
            raise ValueError(f"{name} must be at most {MAX_PRECISION}")
    base, exponent = arguments.get("base", 0), arguments.get("exponent", 0)
    whole = isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1
    if whole and exponent * base.bit_length() > MAX_BITS:
        raise ValueError(f"the power has more than {MAX_BITS} bits")


def _is_too_large(root: Any) -> bool:
    """Return whether a directory holds too much; it may contain itself."""
    nodes = characters = 0
    pending = [(root, 1)]
    while pending:
        directory, depth = pending.pop()
        for name, item in directory.contents.items():
            nodes += 1
            characters += len(name)
            if hasattr(item, "contents"):
                pending.append((item, depth + 1))
            else:
                characters += len(str(item.content))
        if depth > MAX_DEPTH or nodes > MAX_NODES or characters > MAX_CHARACTERS:
            return True
    return False
