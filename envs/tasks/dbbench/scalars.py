"""What MySQL's operators and functions do with values. Standard library only.

What a function cannot take makes NULL, as in MySQL; what it may build is bounded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

from agentrl.envs.tasks.dbbench.values import (
    Value,
    compare,
    fitting,
    key,
    number,
    rounded,
    text,
    whole,
)

MAX_BUILT = 1_000_000  # characters of a text that a function builds

Function = Callable[..., Any]


def numeric(function: Callable[..., Any]) -> Function:
    """Of numbers; NULL where one is NULL or the result is no number."""

    def applied(*values: Value) -> Value:
        numbers = [number(value) for value in values]
        if None in numbers:
            return None
        try:
            result = function(*numbers)
        except (ArithmeticError, ValueError):
            return None
        if isinstance(result, int):
            return fitting(result)
        return None if isinstance(result, float) and not math.isfinite(result) else result

    return applied


def textual(function: Callable[..., Any]) -> Function:
    """Of a text and whatever else; NULL where any is NULL."""

    def applied(first: Value, *others: Value) -> Any:
        if first is None or None in others:
            return None
        return function(text(first) or "", *others)

    return applied


def test(holds: Callable[[int], bool]) -> Function:
    def compared(left: Value, right: Value) -> int | None:
        order = compare(left, right)
        return None if order is None else int(holds(order))

    return compared


def divide(left: float, right: float) -> float | None:
    """Of whole numbers to 4 digits, as a DECIMAL."""
    if right == 0:
        return None
    exact = isinstance(left, int) and isinstance(right, int)
    return rounded(left / right, 4) if exact else left / right


def div(left: float, right: float) -> int | None:
    return None if right == 0 else math.trunc(left / right)


def modulo(left: float, right: float) -> float | None:
    if right == 0:
        return None
    result = math.fmod(left, right)
    return int(result) if isinstance(left, int) and isinstance(right, int) else result


def round_exact(value: float, digits: float = 0) -> float:
    """A half goes away from zero."""
    near = rounded(value, int(digits))
    return int(near) if isinstance(value, int) else near


def round_double(value: float, digits: float = 0) -> float:
    """A double's half goes to the even one."""
    if isinstance(value, int):
        return round_exact(value, digits)
    scale = 10.0 ** max(-300, min(300, int(digits)))
    shifted = value * scale
    return value if not abs(shifted) < 2**52 else round(shifted) / scale


def truncate(value: float, digits: float) -> float:
    scale = 10.0 ** max(-300, min(300, int(digits)))
    cut = math.trunc(value * scale) / scale
    return int(cut) if isinstance(value, int) else cut


def whole_part(function: Callable[[float], int]) -> Function:
    """A double stays one."""
    return numeric(lambda value: value if isinstance(value, int) else float(function(value)))


def is_in(value: Value, *others: Value) -> int | None:
    orders = [compare(value, other) for other in others]
    return 1 if 0 in orders else None if None in orders else 0


def between(value: Value, low: Value, high: Value) -> int | None:
    if any(not isinstance(each, str) for each in (value, low, high)):
        value, low, high = number(value), number(low), number(high)
    above, below = compare(value, low), compare(value, high)
    if (above is not None and above < 0) or (below is not None and below > 0):
        return 0
    return None if above is None or below is None else 1


def same(left: Value, right: Value) -> int:
    return int(left is right is None or compare(left, right) == 0)


def extreme(sign: int) -> Function:
    def extreme(*values: Value) -> Value:
        if None in values:
            return None
        known = values if all(isinstance(each, str) for each in values) else map(number, values)
        best, *others = known
        for other in others:
            if (compare(other, best) or 0) * sign > 0:
                best = other
        return best

    return extreme


def bounded(built: str) -> str | None:
    return built if len(built) <= MAX_BUILT else None


def concat(*values: Value) -> str | None:
    return None if None in values else bounded("".join(text(value) or "" for value in values))


def concat_ws(separator: Value, *values: Value) -> str | None:
    if separator is None:
        return None
    parts = [text(value) or "" for value in values if value is not None]
    return bounded((text(separator) or "").join(parts))


def repeat(word: str, count: Value) -> str | None:
    times = max(0, whole(count) or 0)
    return word * times if len(word) * times <= MAX_BUILT else None


def pad(word: str, length: Value, pad: Value, *, left: bool) -> str | None:
    size, filler = whole(length) or 0, text(pad) or ""
    if size < 0 or size > MAX_BUILT or (size > len(word) and not filler):
        return None
    if size <= len(word):
        return word[:size]
    missing = size - len(word)
    filling = (filler * (missing // len(filler) + 1))[:missing]
    return filling + word if left else word + filling


def substring(word: str, start: Value, length: Value = MAX_BUILT) -> str:
    first, count = whole(start) or 0, whole(length) or 0
    if first == 0 or count <= 0 or abs(first) > len(word):
        return ""
    begin = first - 1 if first > 0 else len(word) + first
    return word[begin : begin + count]


def substring_index(word: str, delimiter: Value, count: Value) -> str:
    mark, times = text(delimiter) or "", whole(count) or 0
    if not mark or times == 0:
        return ""
    parts = word.split(mark)
    return mark.join(parts[:times] if times > 0 else parts[times:])


def insert(word: str, place: Value, length: Value, new: Value) -> str | None:
    first, count = whole(place) or 0, whole(length) or 0
    if not 1 <= first <= len(word):
        return word
    rest = word[first - 1 + count :] if count >= 0 else ""
    return bounded(word[: first - 1] + (text(new) or "") + rest)


def trim(word: str, mark: Value = " ", where: Value = "BOTH") -> str:
    cut, begin, end = text(mark) or "", 0, len(word)
    while cut and where != "TRAILING" and word.startswith(cut, begin, end):
        begin += len(cut)
    while cut and where != "LEADING" and word.endswith(cut, begin, end):
        end -= len(cut)
    return word[begin:end]


def field(value: Value, *others: Value) -> int:
    places = [place for place, other in enumerate(others, 1) if compare(value, other) == 0]
    return places[0] if places else 0


def find_in_set(word: str, words: Value) -> int:
    listed = [key(each) for each in (text(words) or "").split(",")]
    return listed.index(key(word)) + 1 if key(word) in listed else 0


def replace(word: str, old: Value, new: Value) -> str | None:
    wanted, other = text(old) or "", text(new) or ""
    if not wanted or len(word) + word.count(wanted) * len(other) > MAX_BUILT:
        return None if wanted else word
    return word.replace(wanted, other)


def formatted(value: float, digits: float) -> str:
    places = max(0, min(30, int(digits)))
    return f"{rounded(value, places):,.{places}f}"


def md5(word: str) -> str:
    return hashlib.md5(word.encode(), usedforsecurity=False).hexdigest()
