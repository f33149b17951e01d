"""Read and write JSON, and refuse values that later stages cannot carry."""

import json
import math
import re
from typing import Any, NoReturn

DEEPEST = 64  # levels of lists and objects in a call
LARGEST = 1 << 63  # integers beyond 64 bits are refused
SHOWN = 60  # characters of a policy's own text in an error

_NOT_BLANK = re.compile(r"\S")


def read_object(text: str, at: int) -> tuple[dict[str, Any], int]:
    """Parse the JSON object at `at`; also return its end. Raises ValueError."""
    try:
        value, end = DECODER.raw_decode(text, at)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not an object")
    check_value(value)
    return value, end


def read_whole_object(text: str) -> dict[str, Any]:
    """Parse a text as one JSON object. Raises ValueError."""
    value, end = read_object(text, skip_blanks(text, 0))
    if skip_blanks(text, end) != len(text):
        raise ValueError("something follows the object")
    return value


def read_objects(text: str, at: int) -> tuple[list[dict[str, Any]], int]:
    """Parse the JSON objects at `at`, one after the other or in a list. Raises ValueError."""
    listed = text.startswith("[", at)
    found, at = [], at + listed
    while True:
        value, at = read_object(text, skip_blanks(text, at))
        found.append(value)
        at = skip_blanks(text, at)
        if text.startswith(",", at):
            at += 1
        elif listed or not text.startswith("{", at):
            break
    if listed and not text.startswith("]", at):
        raise ValueError("the list was cut off")
    return found, at + listed


def check_value(value: Any, depth: int = 0) -> None:
    """Raise ValueError for valid JSON that later code cannot represent."""
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        value.encode()  # a lone surrogate
    elif isinstance(value, int) and not -LARGEST <= value < LARGEST:
        raise ValueError("an integer of more than 64 bits")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number too large")
    elif isinstance(value, list):
        for each in value:
            check_value(each, depth + 1)
    elif isinstance(value, dict):
        for name, each in value.items():
            check_value(name)
            check_value(each, depth + 1)


def collect_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of an object. Raises ValueError for a repeated key."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{shorten(name)!r} comes twice")
        found[name] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=collect_pairs)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def shorten(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def skip_blanks(text: str, at: int) -> int:
    """Return the position of the next non-blank character, or the end of the text."""
    found = _NOT_BLANK.search(text, at)
    return found.start() if found else len(text)
