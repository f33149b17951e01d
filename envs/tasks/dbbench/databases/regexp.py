"""Regular expressions that never try again what failed, as Python's `re` does.

A pattern of an agent shall not hold up the process: every part of it turns the places where it may
begin into those where it may end. No look-around and no back references; case does not matter.
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, reduce

Tick = Callable[[], None]
Part = Callable[[str, set[int], Tick], set[int]]

_TOKEN = re.compile(r"\[\^?\]?(?:\[:\w+:\]|\\.|[^]\\])*\]|\\.|\{\d+(?:,\d*)?\}|\(\?:|.", re.DOTALL)
_COUNT = re.compile(r"([*+?])|\{(\d+)(,?)(\d*)\}")
_EDGES = {"^": r"\A", "$": r"\Z"}
_CLASSES = {"alpha": "a-zÀ-ɏ", "alnum": "0-9a-zÀ-ɏ", "digit": "0-9", "space": r"\s"}


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> Part:
    """Compile a pattern into a function that finds ends of matches. Raises re.error.

    `tick`, which it is given, is called as the text is read, and raises once time is up.
    """
    tokens = _TOKEN.findall(pattern)[::-1]
    part = _choice(tokens)
    if tokens:
        raise re.error("unmatched )")
    return part


def _choice(tokens: list[str]) -> Part:
    branches = [_sequence(tokens)]
    while _took(tokens, "|"):
        branches.append(_sequence(tokens))
    return lambda text, places, tick: set().union(*(go(text, places, tick) for go in branches))


def _sequence(tokens: list[str]) -> Part:
    parts: list[Part] = []
    while tokens and tokens[-1] not in "|)":
        part = _atom(tokens)
        while tokens and (count := _COUNT.fullmatch(tokens[-1])):
            tokens.pop()
            _took(tokens, "?", "+")  # lazy, possessive: the same answer
            part = _repeated(part, *count.groups(""))
        parts.append(part)
    return lambda text, places, tick: reduce(lambda at, go: go(text, at, tick), parts, places)


def _atom(tokens: list[str]) -> Part:
    token = tokens.pop()
    if token in ("(", "(?:"):
        inner = _choice(tokens)
        if not _took(tokens, ")"):
            raise re.error("missing )")
        return inner
    named = re.sub(r"\[:(\w+):\]", lambda name: _CLASSES.get(name[1], "z-a"), token[1:])
    escaped = re.sub(r"(\\.)|([\[&~|]|-(?=-))", lambda each: each[1] or "\\" + each[2], named)
    test = re.compile(_EDGES.get(token, token[0] + escaped), re.IGNORECASE)

    def read(text: str, places: set[int], tick: Tick) -> set[int]:
        tick()
        return {found.end() for at in places if (found := test.match(text, at))}

    return read


def _repeated(part: Part, sign: str, low: str, comma: str, high: str) -> Part:
    least = int(low or sign == "+")
    most = float(high or (low if sign in "?" and not comma else "inf") or 1)

    def read(text: str, places: set[int], tick: Tick) -> set[int]:
        done, ended = 0, set[int]()
        while places:
            tick()
            places = places - ended
            ended |= places if done >= least else set()
            places, done = part(text, places, tick) if done < most else set(), done + 1
        return ended

    return read


def _took(tokens: list[str], *wanted: str) -> bool:
    return bool(tokens and tokens[-1] in wanted and tokens.pop())
