"""What SQLite lacks of MySQL: a collation, LIKE, REGEXP, functions as `my_<name>`, aggregates.

What a function cannot take makes NULL, as in MySQL. Standard library only: runs in sandboxes too.
"""

from __future__ import annotations

import math
import re
import sqlite3
import unicodedata
from collections.abc import Callable
from datetime import date, datetime
from functools import lru_cache
from string import ascii_lowercase, digits
from typing import Any

from agentrl.envs.tasks.dbbench.databases.regexp import Tick, compile_pattern

Value = str | int | float | None
PREFIX = "my_"
COLLATION = "mysql"
CACHED = 64  # characters of a text whose key is kept
MAX_LIKE = 200  # characters of a pattern, as in SQLite
MAX_JOINED = 1_000_000  # characters that GROUP_CONCAT holds of a group, and returns

_SIGNS = (
    "\t\n\x0b\x0c\r `´^¯¨¸_\xad-‐‒–—―,;:!¡?¿.·'‘’‚‛‹›\"“”„"
    "«»()[]{}§¶©®@*/⁄\\&#%‰†‡•‧′‵※°+±÷×<=>¬|¦~−→←↑↓↔∞■□▲▼◆◇○●★☆♠♣♥♦✓¤¢$£¥€"
)
_ORDER = {sign: chr(256 + at) for at, sign in enumerate(_SIGNS + digits + ascii_lowercase)}
_ALIKE = str.maketrans({"ø": "o", "ð": "d", "đ": "d", "ħ": "h", "ł": "l", "æ": "ae", "œ": "oe"})
_WEIGHTS = str.maketrans({chr(code): None for code in range(0x20)} | _ORDER)
_MARKS = {"M": "%B", "W": "%A", "c": "%m", "e": "%d", "h": "%I", "i": "%M", "s": "%S"}


def register(connection: sqlite3.Connection, tick: Tick) -> None:
    """Add the functions to a connection. Each calls `tick`, which raises once time is up."""

    def regexp(pattern: Value, word: Value) -> bool:
        places = set(range(len(text(word)) + 1))
        return bool(compile_pattern(text(pattern))(text(word), places, tick))

    def of_values(function: Callable[..., Any]) -> Callable[..., Any]:
        """NULL where a value is NULL, or what the function cannot take."""

        def applied(*values: Value) -> Any:
            tick()
            try:
                return None if None in values else function(*values)
            except (ArithmeticError, ValueError):
                return None

        return applied

    connection.create_collation(COLLATION, collate)
    connection.create_function("like", 2, of_values(like))
    connection.create_function("like", 3, of_values(like))
    connection.create_function("regexp", 2, of_values(regexp))
    for name, function in FUNCTIONS.items():
        connection.create_function(PREFIX + name, -1, of_values(function), deterministic=True)
    for name, aggregate in AGGREGATES.items():
        connection.create_aggregate(PREFIX + name, -1, aggregate)


def text(value: Value) -> str:
    """Format a value as text: a double without needless digits, NULL as an empty text."""
    if isinstance(value, float):
        return repr(value).removesuffix(".0").replace("e+", "e")
    return "" if value is None else str(value)


def key(word: str) -> str:
    """Return a sort key; texts compare as their keys do."""
    return _kept(word) if len(word) <= CACHED else _key(word)


def _key(word: str) -> str:
    if not word.isascii():
        parts = unicodedata.normalize("NFKD", word).casefold()
        word = "".join(letter for letter in parts if not unicodedata.combining(letter))
        word = word.translate(_ALIKE)
    return word.lower().translate(_WEIGHTS)


_kept = lru_cache(maxsize=8192)(_key)


def collate(left: str, right: str) -> int:
    """Compare two texts; returns -1, 0 or 1."""
    one, other = key(left), key(right)
    return (one > other) - (one < other)


class First:
    """Aggregate: the value of the group's first row, for a column that is not grouped."""

    def __init__(self) -> None:
        self._values: list[Value] = []

    def step(self, value: Value) -> None:
        self._values = self._values or [value]

    def finalize(self) -> Value:
        return self._values[0] if self._values else None


class Joined:
    """Aggregate GROUP_CONCAT(separator, is distinct, is descending, order, values)."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._held = 0

    def step(self, *row: Value) -> None:
        self._held += sum(len(text(value)) for value in row)
        if None not in row[4:] and self._held <= MAX_JOINED:
            self._rows.append(row)

    def finalize(self) -> str | None:
        if not self._rows:
            return None
        separator, distinct, descending, by = self._rows[0][:4]
        order = (lambda row: key(text(row[3]))) if isinstance(by, str) else lambda row: row[3] or 0
        self._rows.sort(key=order, reverse=bool(descending))
        words = ["".join(map(text, row[4:])) for row in self._rows]
        if distinct:
            words = list({key(word): word for word in reversed(words)}.values())[::-1]
        return text(separator).join(words)


def like(pattern: Value, word: Value, escape: str = "\\") -> bool:
    """Each `%` takes as little as lets the next part match: nothing is tried twice."""
    marks = re.findall(re.escape(escape) + r".|.", text(pattern), re.DOTALL)
    if len(marks) > MAX_LIKE:
        raise re.error("LIKE pattern is too long")
    signs = {"%": "%", "_": "."}
    expression = "".join(signs.get(mark) or re.escape(key(mark[-1])) for mark in marks)
    first, *parts = expression.split("%")
    middle = "".join(f"(?>.*?{part})" for part in parts[:-1])
    last = f".*{parts[-1]}" if parts else ""
    return re.fullmatch(first + middle + last, key(text(word)), re.DOTALL) is not None


def _locate(part: Value, word: Value, start: int = 1) -> int:
    return text(word).lower().find(text(part).lower(), start - 1) + 1 if start > 0 else 0


def _substring_index(word: Value, delimiter: str, count: int) -> str:
    parts = text(word).split(delimiter) if delimiter and count else []
    return delimiter.join(parts[:count] if count > 0 else parts[count:])


def _round(value: float, places: float = 0) -> float:
    """Round a double; a half goes to the even neighbour."""
    scale = 10.0 ** max(-300, min(300, int(places)))
    return round(value * scale) / scale if abs(value * scale) < 2**52 else value


def _str_to_date(word: Value, pattern: Value) -> str:
    form = re.sub(r"%(.)", lambda mark: _MARKS.get(mark[1], mark[0]), text(pattern))
    return f"{datetime.strptime(text(word), form):%Y-%m-%d}"


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "text": text,
    "tuple": lambda *values: "\0".join(map(text, values)),
    "concat": lambda *values: "".join(map(text, values)),
    "substring_index": _substring_index,
    "left": lambda word, size: text(word)[: max(0, size)],
    "right": lambda word, size: text(word)[max(0, len(text(word)) - max(0, size)) :],
    "upper": lambda word: text(word).upper(),
    "lower": lambda word: text(word).lower(),
    "trim": lambda word: text(word).strip(" "),
    "length": lambda word: len(text(word).encode()),
    "char_length": lambda word: len(text(word)),
    "locate": _locate,
    "instr": lambda word, part: _locate(part, word),
    "ceil": math.ceil,
    "floor": math.floor,
    "round": _round,
    "mod": math.fmod,
    "str_to_date": _str_to_date,
    "year": lambda word: date.fromisoformat(text(word).strip()[:10]).year,
}
AGGREGATES: dict[str, Any] = {"first": First, "group_concat": Joined}
