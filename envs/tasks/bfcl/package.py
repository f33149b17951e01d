"""The parts of the package `bfcl-eval` that this task uses: API classes, documents, checker, data.

The package requires fifty others, for models and for the other parts of the benchmark. What is
imported here needs only mpmath, so the package is installed without its requirements.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Tool

CLASSES = (  # of the multi-turn categories
    "GorillaFileSystem",
    "MathAPI",
    "MessageAPI",
    "TicketAPI",
    "TradingBot",
    "TravelAPI",
    "TwitterAPI",
    "VehicleControlAPI",
)
INSTALL = "pip install --no-deps bfcl-eval==2026.3.23"

_TYPES = {"dict": "object", "float": "number"}  # of the documents, in JSON schema
_KEPT = ("description", "enum", "default")  # of a parameter, besides its type

T = TypeVar("T", bound=msgspec.Struct)


class Document(msgspec.Struct, frozen=True):
    """A function's document. `parameters`: in the documents' own dialect of JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


def import_part(name: str) -> Any:
    """Import a module of the package. Raises ItemError that names the command to install it."""
    try:
        return import_module(f"bfcl_eval.{name}")
    except ImportError as error:
        text = f"bfcl: the package bfcl-eval cannot be imported: {error}"
        raise ItemError(text, hint=f"run `{INSTALL}`") from error


def backend() -> Any:
    """Return the module that says where classes and documents are. Raises ItemError."""
    return import_part("constants.executable_backend_config")


def load_class(name: str) -> type[Any]:
    """Return an API class. Raises ItemError for an unknown one."""
    if name not in CLASSES:
        raise ItemError(f"bfcl: unknown class {name[:40]}; known: {', '.join(CLASSES)}")
    module = backend().CLASS_FILE_PATH_MAPPING[name].removeprefix("bfcl_eval.")
    found: type[Any] = getattr(import_part(module), name)
    return found


@cache
def class_tools(name: str) -> tuple[Tool, ...]:
    """Return the documented functions of a class as tools. Raises ItemError."""
    load_class(name)
    file = backend().MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]
    documents = read_lines(f"multi_turn_func_doc/{file}", Document)
    return tuple(Tool(each.name, each.description, _schema(each.parameters)) for each in documents)


def read_lines(path: str, kind: type[T]) -> Iterator[T]:
    """Read a file of the package's data, a JSON object per line. Raises ItemError."""
    backend()
    decoder = msgspec.json.Decoder(kind)
    try:
        for line in (files("bfcl_eval") / "data" / path).read_bytes().splitlines():
            yield decoder.decode(line)
    except (OSError, msgspec.DecodeError) as error:
        raise ItemError(f"bfcl: {path}: {error}", hint=f"run `{INSTALL}`") from error


def _schema(document: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a document's parameters to a JSON schema; only the first level is closed.

    The documents write no default as "None".
    """
    kind = str(document.get("type", "string"))
    schema: dict[str, Any] = {"type": _TYPES.get(kind, kind)}
    schema |= {name: document[name] for name in _KEPT if document.get(name, "None") != "None"}
    if isinstance(document.get("items"), dict):
        schema["items"] = _schema(document["items"])
    if schema["type"] == "object":
        properties = document.get("properties", {})
        schema["properties"] = {name: _open(_schema(each)) for name, each in properties.items()}
        schema["required"] = list(document.get("required", ()))
        schema["additionalProperties"] = False
    return schema


def _open(schema: dict[str, Any]) -> dict[str, Any]:
    return schema | ({"additionalProperties": True} if schema["type"] == "object" else {})
