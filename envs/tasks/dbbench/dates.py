"""Dates as MySQL reads and writes them in texts. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta

from agentrl.envs.tasks.dbbench.values import Value, text

_MONTHS = [
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_ISO = re.compile(
    r"\s*(\d{4}|\d{2})[-/.:](\d{1,2})[-/.:](\d{1,2})(?:[T\s]+(\d{1,2}):(\d{1,2})(?::(\d{1,2}))?)?",
    re.ASCII,
)
_BARE = re.compile(r"\s*(\d{4})(\d{2})(\d{2})\b", re.ASCII)
_NUMBERS = {"Y": 4, "y": 2, "m": 2, "c": 2, "d": 2, "e": 2, "H": 2, "k": 2, "h": 2, "I": 2, "l": 2}
_NUMBERS |= {"i": 2, "s": 2, "S": 2, "j": 3}
_FIELDS = {"Y": "year", "y": "year", "m": "month", "c": "month", "d": "day", "e": "day"}
_FIELDS |= {"H": "hour", "k": "hour", "h": "hour", "I": "hour", "l": "hour"}
_FIELDS |= {"i": "minute", "s": "second", "S": "second"}
_TIMES = frozenset({"hour", "minute", "second"})
_WRITTEN: dict[str, Callable[[datetime], str]] = {
    "Y": lambda at: f"{at.year:04d}",
    "y": lambda at: f"{at.year % 100:02d}",
    "m": lambda at: f"{at.month:02d}",
    "c": lambda at: str(at.month),
    "M": lambda at: _MONTHS[at.month - 1],
    "b": lambda at: _MONTHS[at.month - 1][:3],
    "d": lambda at: f"{at.day:02d}",
    "e": lambda at: str(at.day),
    "D": lambda at: f"{at.day}{_ending(at.day)}",
    "W": lambda at: _DAYS[at.weekday()],
    "a": lambda at: _DAYS[at.weekday()][:3],
    "w": lambda at: str((at.weekday() + 1) % 7),
    "j": lambda at: f"{at.timetuple().tm_yday:03d}",
    "H": lambda at: f"{at.hour:02d}",
    "k": lambda at: str(at.hour),
    "h": lambda at: f"{at.hour % 12 or 12:02d}",
    "I": lambda at: f"{at.hour % 12 or 12:02d}",
    "l": lambda at: str(at.hour % 12 or 12),
    "i": lambda at: f"{at.minute:02d}",
    "s": lambda at: f"{at.second:02d}",
    "S": lambda at: f"{at.second:02d}",
    "p": lambda at: "AM" if at.hour < 12 else "PM",
    "T": lambda at: f"{at:%H:%M:%S}",
    "r": lambda at: f"{at.hour % 12 or 12:02d}:{at:%M:%S} {'AM' if at.hour < 12 else 'PM'}",
}


def moment(word: str) -> datetime | None:
    """A text that begins with year, month and day; None for any other."""
    found = _ISO.match(word) or _BARE.match(word)
    if found is None:
        return None
    year, month, day, hour, minute, second = [
        int(part or 0) for part in (*found.groups(), 0, 0, 0)[:6]
    ]
    if len(found[1]) == 2:
        year += 2000 if year < 70 else 1900
    try:
        return datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None


def parsed(word: str, pattern: Value) -> str | None:
    """STR_TO_DATE: `2000-08-15`, or with a time where the pattern has one; NULL if it fails."""
    found: dict[str, int] = {}
    rest = word
    marks = re.findall(r"%.|\s+|[^%\s]|%$", text(pattern) or "", re.DOTALL)
    for mark in marks:
        if not rest:
            break  # what the pattern asks for beyond the text's end stays 0
        taken = _took(mark, rest.lstrip() if mark[0] != " " else rest, found)
        if taken is None:
            return None
        rest = taken
    return _put_together(found)


def _took(mark: str, rest: str, found: dict[str, int]) -> str | None:
    """What is left of `rest` after one mark of the pattern; None where it does not fit."""
    if mark.isspace():
        return rest.lstrip()
    if len(mark) == 1:
        return rest[1:] if rest.startswith(mark) else None
    kind = mark[1]
    if kind in _NUMBERS:
        return _took_number(kind, rest, found)
    if kind in "MbWaDp":
        return _took_name(kind, rest, found)
    if kind in "Tr":
        return None
    return rest[1:] if rest.startswith(kind) else None


def _took_number(kind: str, rest: str, found: dict[str, int]) -> str | None:
    digits = re.match(rf"\d{{1,{_NUMBERS[kind]}}}", rest, re.ASCII)
    if digits is None:
        return None
    value = int(digits[0])
    if kind in "yY" and len(digits[0]) <= 2:
        value += 2000 if value < 70 else 1900
    if kind in _FIELDS:
        found[_FIELDS[kind]] = value
    return rest[digits.end() :]


def _took_name(kind: str, rest: str, found: dict[str, int]) -> str | None:
    if kind == "D":
        ordinal = re.match(r"(\d{1,2})[a-z]{2}", rest, re.ASCII | re.IGNORECASE)
        if ordinal is None:
            return None
        found["day"] = int(ordinal[1])
        return rest[ordinal.end() :]
    if kind == "p":
        half = rest[:2].upper()
        found["half"] = 12 if half == "PM" else 0
        return rest[2:] if half in ("AM", "PM") else None
    names = _MONTHS if kind in "Mb" else _DAYS
    for place, name in enumerate(names, 1):
        for form in (name, name[:3]) if kind in "ba" else (name,):
            if rest.lower().startswith(form.lower()):
                if kind in "Mb":
                    found["month"] = place
                return rest[len(form) :]
    return None


def _put_together(found: dict[str, int]) -> str | None:
    half = found.pop("half", None)
    if half is not None and "hour" in found:
        found["hour"] = found["hour"] % 12 + half
    year, month, day = (found.get(name, 0) for name in ("year", "month", "day"))
    if month > 12 or day > 31 or (month and day and not _exists(year or 2000, month, day)):
        return None
    date = f"{year:04d}-{month:02d}-{day:02d}"
    clock = ":".join(f"{found.get(name, 0):02d}" for name in ("hour", "minute", "second"))
    if not _TIMES & set(found):
        return date
    return f"{date} {clock}" if {"year", "month", "day"} & set(found) else clock


def _exists(year: int, month: int, day: int) -> bool:
    try:
        datetime(year, month, day)
    except ValueError:
        return False
    return True


def formatted(word: str, pattern: Value) -> str | None:
    """DATE_FORMAT."""
    at = moment(word)
    if at is None:
        return None
    return re.sub(
        r"%(.)",
        lambda mark: _WRITTEN[mark[1]](at) if mark[1] in _WRITTEN else mark[1],
        text(pattern) or "",
    )


def day(word: str) -> str | None:
    at = moment(word)
    return None if at is None else at.date().isoformat()


def difference(left: str, right: Value) -> int | None:
    """Days from `right` to `left`."""
    one, other = moment(left), moment(text(right) or "")
    return None if one is None or other is None else (one.date() - other.date()).days


def units_between(unit: str, start: Value, end: Value) -> int | None:
    """TIMESTAMPDIFF: whole units."""
    one, other = moment(text(start) or ""), moment(text(end) or "")
    if one is None or other is None:
        return None
    if one > other:
        backwards = units_between(unit, end, start)
        return None if backwards is None else -backwards
    months = (other.year - one.year) * 12 + other.month - one.month
    months -= (other.day, other.time()) < (one.day, one.time())
    seconds = (other - one) // timedelta(seconds=1)
    sizes = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 604800}
    if unit.upper() in sizes:
        return seconds // sizes[unit.upper()]
    return {"MONTH": months, "QUARTER": months // 3, "YEAR": months // 12}.get(unit.upper())


def _part(read: Callable[[datetime], Value]) -> Callable[[str], Value]:
    def reader(word: str) -> Value:
        at = moment(word)
        return None if at is None else read(at)

    return reader


def _ending(number: int) -> str:
    if 10 < number < 14:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")  # codespell:ignore nd


PARTS: dict[str, Callable[[str], Value]] = {
    "year": _part(lambda at: at.year),
    "quarter": _part(lambda at: (at.month + 2) // 3),
    "month": _part(lambda at: at.month),
    "day": _part(lambda at: at.day),
    "dayofmonth": _part(lambda at: at.day),
    "hour": _part(lambda at: at.hour),
    "minute": _part(lambda at: at.minute),
    "second": _part(lambda at: at.second),
    "monthname": _part(lambda at: _MONTHS[at.month - 1]),
    "dayname": _part(lambda at: _DAYS[at.weekday()]),
    "dayofweek": _part(lambda at: (at.weekday() + 1) % 7 + 1),
    "weekday": _part(lambda at: at.weekday()),
    "dayofyear": _part(lambda at: at.timetuple().tm_yday),
}
