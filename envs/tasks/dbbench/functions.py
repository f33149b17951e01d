"""MySQL's functions, operators and aggregates for an SQLite connection, each as `my_<name>`.

Standard library only: runs in sandboxes too.
"""

from __future__ import annotations

import math
import random
import sqlite3
from datetime import datetime
from typing import Any

from agentrl.envs.tasks.dbbench import dates, scalars
from agentrl.envs.tasks.dbbench.matching import Tick, matching
from agentrl.envs.tasks.dbbench.scalars import Function, numeric, textual
from agentrl.envs.tasks.dbbench.values import (
    Value,
    collate,
    compare,
    fitting,
    key,
    number,
    rounded,
    text,
    whole,
)

PREFIX = "my_"
COLLATION = "mysql"
CONCAT_BYTES = 1_000_000  # the longest value; MariaDB's group_concat_max_len is 1 Mi, MySQL's 1 Ki
MAX_JOINED = 1 << 25  # characters that GROUP_CONCAT holds, of texts and of keys to order them by
ROW = 16  # characters that a row counts as beside its texts


def register(connection: sqlite3.Connection, tick: Tick) -> None:
    """`tick` is called where a function may take long; it raises once time is up."""
    connection.create_collation(COLLATION, collate)
    for name, function in (FUNCTIONS | matching(tick)).items():
        connection.create_function(PREFIX + name, -1, function, deterministic=True)
    for name, function in CLOCK.items():
        connection.create_function(PREFIX + name, -1, function)
    for name, aggregate in AGGREGATES.items():
        connection.create_aggregate(PREFIX + name, -1, aggregate)


class First:
    """Of the rows of a group, what the first one has: a column that is not grouped."""

    def __init__(self) -> None:
        self._values: list[Value] = []

    def step(self, value: Value) -> None:
        if not self._values:
            self._values.append(value)

    def finalize(self) -> Value:
        return self._values[0] if self._values else None


class Sum:
    """A double where any value is text or a double, else exact."""

    def __init__(self) -> None:
        self._numbers: list[float] = []

    def step(self, value: Value) -> None:
        if (amount := number(value)) is not None:
            self._numbers.append(amount)

    def finalize(self) -> Value:
        total = sum(self._numbers)
        exact = fitting(total) if isinstance(total, int) else total
        return exact if self._numbers else None


class Average(Sum):
    def finalize(self) -> Value:
        if not self._numbers:
            return None
        mean = sum(self._numbers) / len(self._numbers)
        exact = all(isinstance(each, int) for each in self._numbers)
        return rounded(mean, 4) if exact else mean


class Deviation(Sum):
    """Of the population, or of a sample where `lost` is 1."""

    lost = 0

    def variance(self) -> float | None:
        count = len(self._numbers)
        if count <= self.lost:
            return None
        mean = sum(self._numbers) / count
        return sum((each - mean) ** 2 for each in self._numbers) / (count - self.lost)

    def finalize(self) -> Value:
        spread = self.variance()
        return None if spread is None else math.sqrt(spread)


class SampleDeviation(Deviation):
    lost = 1


class Variance(Deviation):
    def finalize(self) -> Value:
        return self.variance()


class SampleVariance(Variance):
    lost = 1


class Joined:
    """GROUP_CONCAT: separator, distinct or not, value, then pairs of an order's key and 1 or -1."""

    def __init__(self) -> None:
        self._separator, self._distinct = ",", False
        self._rows: list[tuple[str, tuple[Value, ...]]] = []
        self._held = 0

    def step(self, separator: str, distinct: int, value: Value, *order: Value) -> None:
        self._separator, self._distinct = separator, bool(distinct)
        if value is None:
            return
        word = text(value) or ""
        self._held += len(word) + ROW + sum(len(each) for each in order if isinstance(each, str))
        if self._held <= MAX_JOINED:
            self._rows.append((word, order))
        elif order or distinct:  # else what follows would be cut off
            raise ValueError("GROUP_CONCAT of too much")

    def finalize(self) -> Value:
        rows = list(self._rows)
        for place in range(len(rows[0][1]) - 2 if rows else -1, -1, -2):
            rows.sort(key=lambda row: _sortable(row[1][place]), reverse=rows[0][1][place + 1] == -1)
        words = [row[0] for row in rows]
        if self._distinct:
            words = list({key(word): word for word in reversed(words)}.values())[::-1]
        if not words:
            return None
        return self._separator.join(words).encode()[:CONCAT_BYTES].decode(errors="ignore")


def _sortable(value: Value) -> tuple[int, float, str]:
    if value is None:
        return 0, 0.0, ""
    return (2, 0.0, key(value)) if isinstance(value, str) else (1, value, "")


def _tuple(*values: Value) -> str | None:
    """One text for several values, equal where they are; NULL where one is."""
    return None if None in values else "\x00".join(text(value) or "" for value in values)


def _signed(value: Value) -> Value:
    cut = whole(value)
    return None if cut is None else fitting(cut)


def _unsigned(value: Value) -> Value:
    cut = whole(value)
    return None if cut is None else fitting(cut % 2**64)


def _if_null(value: Value, other: Value) -> Value:
    return other if value is None else value


def _logarithm(first: float, second: float | None = None) -> float:
    return math.log(first) if second is None else math.log(second) / math.log(first)


CLOCK: dict[str, Function] = {
    "rand": lambda *_: random.random(),
    "now": lambda *_: f"{datetime.now():%Y-%m-%d %H:%M:%S}",
    "curdate": lambda: f"{datetime.now():%Y-%m-%d}",
}
AGGREGATES: dict[str, Any] = {
    "first": First,
    "sum": Sum,
    "avg": Average,
    "std": Deviation,
    "stddev": Deviation,
    "stddev_pop": Deviation,
    "stddev_samp": SampleDeviation,
    "variance": Variance,
    "var_pop": Variance,
    "var_samp": SampleVariance,
    "group_concat": Joined,
}
FUNCTIONS: dict[str, Function] = {
    "eq": scalars.test(lambda order: order == 0),
    "ne": scalars.test(lambda order: order != 0),
    "lt": scalars.test(lambda order: order < 0),
    "le": scalars.test(lambda order: order <= 0),
    "gt": scalars.test(lambda order: order > 0),
    "ge": scalars.test(lambda order: order >= 0),
    "same": scalars.same,
    "in": scalars.is_in,
    "between": scalars.between,
    "add": numeric(lambda left, right: left + right),
    "sub": numeric(lambda left, right: left - right),
    "mul": numeric(lambda left, right: left * right),
    "neg": numeric(lambda value: 0 - value),
    "divide": numeric(scalars.divide),
    "div": numeric(scalars.div),
    "mod": numeric(scalars.modulo),
    "xor": numeric(lambda left, right: int(bool(left) != bool(right))),
    "text": text,
    "number": number,
    "signed": _signed,
    "unsigned": _unsigned,
    "double": numeric(float),
    "decimal": numeric(lambda value, digits: rounded(float(value), int(digits))),
    "char": textual(lambda word, size=None: word if size is None else word[: int(size)]),
    "tuple": _tuple,
    "abs": numeric(abs),
    "sign": numeric(lambda value: (value > 0) - (value < 0)),
    "ceil": scalars.whole_part(math.ceil),
    "ceiling": scalars.whole_part(math.ceil),
    "floor": scalars.whole_part(math.floor),
    "round": numeric(scalars.round_double),
    "round_exact": numeric(scalars.round_exact),
    "truncate": numeric(scalars.truncate),
    "power": numeric(lambda base, power: float(base) ** power),
    "pow": numeric(lambda base, power: float(base) ** power),
    "sqrt": numeric(math.sqrt),
    "exp": numeric(math.exp),
    "ln": numeric(math.log),
    "log": numeric(_logarithm),
    "log2": numeric(math.log2),
    "log10": numeric(math.log10),
    "pi": lambda: 3.141593,
    "greatest": scalars.extreme(1),
    "least": scalars.extreme(-1),
    "isnull": lambda value: int(value is None),
    "ifnull": _if_null,
    "coalesce": lambda *values: next((each for each in values if each is not None), None),
    "nullif": lambda left, right: None if compare(left, right) == 0 else left,
    "concat": scalars.concat,
    "concat_ws": scalars.concat_ws,
    "length": textual(lambda word: len(word.encode())),
    "octet_length": textual(lambda word: len(word.encode())),
    "char_length": textual(len),
    "character_length": textual(len),
    "lower": textual(str.lower),
    "lcase": textual(str.lower),
    "upper": textual(str.upper),
    "ucase": textual(str.upper),
    "trim": textual(scalars.trim),
    "ltrim": textual(lambda word: word.lstrip(" ")),
    "rtrim": textual(lambda word: word.rstrip(" ")),
    "left": textual(lambda word, size: word[: max(0, whole(size) or 0)]),
    "right": textual(lambda word, size: word[max(0, len(word) - max(0, whole(size) or 0)) :]),
    "substring": textual(scalars.substring),
    "substr": textual(scalars.substring),
    "mid": textual(scalars.substring),
    "substring_index": textual(scalars.substring_index),
    "replace": textual(scalars.replace),
    "reverse": textual(lambda word: word[::-1]),
    "repeat": textual(scalars.repeat),
    "space": lambda count: scalars.repeat(" ", count),
    "lpad": textual(lambda word, size, pad=" ": scalars.pad(word, size, pad, left=True)),
    "rpad": textual(lambda word, size, pad=" ": scalars.pad(word, size, pad, left=False)),
    "field": scalars.field,
    "insert": textual(scalars.insert),
    "elt": lambda place, *words: words[place - 1] if 0 < (place or 0) <= len(words) else None,
    "find_in_set": textual(scalars.find_in_set),
    "strcmp": compare,
    "ascii": textual(lambda word: word.encode()[0] if word else 0),
    "ord": textual(lambda word: ord(word[0]) if word else 0),
    "md5": textual(scalars.md5),
    "hex": textual(lambda word: word.encode().hex().upper()),
    "format": numeric(scalars.formatted),
    "database": lambda: "dbbench",
    "schema": lambda: "dbbench",
    "str_to_date": textual(dates.parsed),
    "date_format": textual(dates.formatted),
    "date": textual(dates.day),
    "datediff": textual(dates.difference),
    "timestampdiff": textual(dates.units_between),
    **{part: textual(reader) for part, reader in dates.PARTS.items()},
}
