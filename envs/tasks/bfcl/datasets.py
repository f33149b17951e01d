"""The benchmark's multi-turn items: what is read, and how its format becomes items of ours."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentrl.core.errors import ItemError
from agentrl.envs.contract import (
    Item,
    require_split,
)
from agentrl.envs.tasks.bfcl.problem import Described, Problem, Request
from agentrl.envs.tasks.bfcl.world import CLASSES, World, known, parsed
from agentrl.envs.tasks.datasets import Dataset, locate

TASK = "bfcl"
SPLITS: Mapping[str, str] = {
    "base": "BFCL_v3_multi_turn_base.json",
    "miss_param": "BFCL_v3_multi_turn_miss_param.json",
}
DOCUMENTS: Mapping[str, str] = {
    "GorillaFileSystem": "gorilla_file_system.json",
    "MathAPI": "math_api.json",
    "MessageAPI": "message_api.json",
    "TicketAPI": "ticket_api.json",
    "TwitterAPI": "posting_api.json",
}
V3 = Dataset(
    TASK,
    "v3",
    (
        *(f"bfcl/{name}" for name in SPLITS.values()),
        *(f"bfcl/possible_answer/{name}" for name in SPLITS.values()),
        *(f"bfcl/multi_turn_func_doc/{name}" for name in DOCUMENTS.values()),
    ),
    "https://github.com/ShishirPatil/gorilla, folder berkeley-function-call-leaderboard, a version "
    "with BFCL_v3: the multi-turn files of its data folder, its folders possible_answer and "
    "multi_turn_func_doc",
    "Apache-2.0",
    "multi-turn items of five of its classes, splits base and miss_param",
)
DATASETS = (V3,)

_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_KEPT = ("description", "enum", "default")  # of a parameter, besides its type


T = TypeVar("T", bound=msgspec.Struct)


class Line(msgspec.Struct, frozen=True):
    """A line of a file of questions. `question`: of each turn its messages."""

    id: str
    question: list[list[dict[str, str]]]
    involved_classes: list[str]
    initial_config: dict[str, dict[str, Any]] = {}
    excluded_function: list[str] = []


class Answer(msgspec.Struct, frozen=True):
    """A line of a file of possible answers: of each turn its calls, written in Python."""

    id: str
    ground_truth: list[list[str]]


class Document(msgspec.Struct, frozen=True):
    """A line of a file of function documents."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Imported:
    """The items of a split, and why each of the others was refused, by id."""

    items: tuple[Item, ...]
    refused: Mapping[str, str]


@cache
def imported(split: str, data: str) -> Imported:
    """Raises ItemError, Lacking."""
    require_split(TASK, split, SPLITS)
    folder = locate(V3, data) / "bfcl"
    described = {kind: _described(folder, kind) for kind in DOCUMENTS}
    path = folder / "possible_answer" / SPLITS[split]
    answers = {each.id: each.ground_truth for each in _lines(path, Answer)}
    items: list[Item] = []
    refused: dict[str, str] = {}
    for line in _lines(folder / SPLITS[split], Line):
        try:
            if line.id not in answers:
                raise ItemError("it has no possible answer")
            items.append(Item(TASK, line.id, _problem(line, answers[line.id], described).content()))
        except ItemError as error:
            refused[line.id] = str(error)
    return Imported(tuple(items), refused)


def parameters(document: Mapping[str, Any]) -> dict[str, Any]:
    """The documents' own dialect as a JSON schema; only its first level is closed.

    Their default "None" stands for no value.
    """
    kind = str(document.get("type", "string"))
    schema: dict[str, Any] = {"type": _TYPES.get(kind, kind)}
    schema |= {name: document[name] for name in _KEPT if document.get(name, "None") != "None"}
    if isinstance(document.get("items"), dict):
        schema["items"] = parameters(document["items"])
    if schema["type"] == "object":
        properties = document.get("properties", {})
        inner = {name: parameters(each) for name, each in properties.items()}
        opened = {name: {**each, **_open(each)} for name, each in inner.items()}
        schema["properties"] = opened
        schema["required"] = list(document.get("required", ()))
        schema["additionalProperties"] = False
    return schema


def _open(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"additionalProperties": True} if schema["type"] == "object" else {}


def _described(folder: Path, kind: str) -> list[Described]:
    """Raises ItemError for a function or a parameter that this class does not have."""
    path = folder / "multi_turn_func_doc" / DOCUMENTS[kind]
    found = []
    for each in _lines(path, Document):
        of, function = known().get(each.name, ("", None))
        schema = parameters(each.parameters)
        if function is None or of != kind:
            raise ItemError(f"{path.name}: {kind} has no function {each.name}")
        if unknown := schema["properties"].keys() - set(function.parameters):
            raise ItemError(f"{path.name}: {each.name} has no parameter {min(unknown)}")
        found.append(Described(each.name, each.description, schema))
    return found


def _problem(
    line: Line, truth: list[list[str]], described: Mapping[str, list[Described]]
) -> Problem:
    """Raises ItemError where the item is not understood, or its calls are refused here."""
    if others := sorted(set(line.involved_classes) - CLASSES.keys()):
        raise ItemError(f"class {', '.join(others)}")
    if len(truth) != len(line.question) or not truth:
        raise ItemError(f"{len(line.question)} turns, {len(truth)} answers")
    requests = []
    world = World(line.involved_classes, line.initial_config)
    for messages, calls in zip(line.question, truth, strict=True):
        text = "\n".join(each.get("content", "") for each in messages)
        if not text:
            raise ItemError("a turn without a message")
        requests.append(Request(text, [parsed(call) for call in calls]))
        for call in requests[-1].truth:
            world.run(call.name, call.arguments)
    tools = [each for kind in line.involved_classes for each in described[kind]]
    shown = [each for each in tools if each.name not in line.excluded_function]
    config = {kind: line.initial_config.get(kind, {}) for kind in line.involved_classes}
    return Problem(requests, line.involved_classes, config, shown)


def _lines(path: Path, kind: type[T]) -> Iterator[T]:
    """The lines of a file, each a JSON object. Raises ItemError."""
    decoder = msgspec.json.Decoder(kind)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ItemError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ItemError(f"{path}, line {number}: {error}") from error
