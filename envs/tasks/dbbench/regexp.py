"""Regular expressions in time proportional to pattern times text: no backtracking.

The usual syntax without look-around and back references; case does not matter. A pattern becomes
instructions (Thompson 1968, as a list of threads); a text is read once. Standard library only.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any

MAX_STATES = 2000
MAX_REPEAT = 255
MAX_VISITS = 20_000  # of nodes while compiling: repetitions of nothing add no state

Test = Callable[[str], bool]
Node = tuple[Any, ...]
Span = tuple[int, int]

_CLASSES: dict[str, Test] = {
    "d": str.isdecimal,
    "w": lambda letter: letter.isalnum() or letter == "_",
    "s": str.isspace,
}
_POSIX: dict[str, Test] = {
    "alpha": str.isalpha,
    "digit": str.isdecimal,
    "alnum": str.isalnum,
    "space": str.isspace,
    "upper": str.isalpha,  # case does not matter
    "lower": str.isalpha,
    "blank": lambda letter: letter in " \t",
    "punct": lambda letter: unicodedata.category(letter)[0] in "PS",
    "xdigit": lambda letter: letter in "0123456789abcdefABCDEF",
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


class _Parser:
    """A pattern to a tree. Raises ValueError."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0

    def parse(self) -> Node:
        tree = self._choice(0)
        if self._at < len(self._pattern):
            raise ValueError("unmatched parenthesis")
        return tree

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        if self._at == len(self._pattern):
            raise ValueError("pattern ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _eat(self, head: str) -> bool:
        found = self._pattern.startswith(head, self._at)
        self._at += len(head) * found
        return found

    def _choice(self, depth: int) -> Node:
        if depth > 50:
            raise ValueError("nested too deeply")
        branches = [self._sequence(depth)]
        while self._eat("|"):
            branches.append(self._sequence(depth))
        return ("or", branches)

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._peek() and self._peek() not in "|)":
            parts.append(self._repeated(self._atom(depth)))
        return ("and", parts)

    def _repeated(self, node: Node) -> Node:
        while self._peek() and self._peek() in "*+?{":
            low, high = self._counts()
            if not self._eat("?"):
                self._eat("+")
            node = ("repeat", node, low, high)
        return node

    def _counts(self) -> tuple[int, int | None]:
        mark = self._take()
        if mark != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[mark]
        inside, closed, rest = self._pattern[self._at :].partition("}")
        low, comma, high = inside.partition(",")
        if not closed or not low.isdecimal() or (high and not high.isdecimal()):
            raise ValueError("bad repetition")
        self._at = len(self._pattern) - len(rest)
        if max(int(low), int(high or 0)) > MAX_REPEAT:
            raise ValueError("repetition is too long")
        return int(low), (int(high) if high else None) if comma else int(low)

    def _atom(self, depth: int) -> Node:
        letter = self._take()
        if letter == "(":
            if self._eat("?") and not self._eat(":"):
                raise ValueError("groups with (? are not supported")
            inner = self._choice(depth + 1)
            if not self._eat(")"):
                raise ValueError("missing )")
            return inner
        if letter in "*+?":
            raise ValueError("nothing to repeat")
        if letter == "[":
            return ("one", self._set())
        if letter in "^$":
            return ("edge", letter)
        if letter == "\\":
            return self._escaped()
        return ("one", _any if letter == "." else _literal(letter))

    def _escaped(self) -> Node:
        letter = self._take()
        if letter in "bBAzZ":
            return ("edge", {"A": "^", "z": "$", "Z": "$"}.get(letter, letter))
        if letter.isdecimal():
            raise ValueError("back references are not supported")
        return ("one", _class(letter) or _literal(_ESCAPES.get(letter, letter)))

    def _set(self) -> Test:
        negated = self._eat("^")
        tests = [self._member()]
        while self._peek() != "]":
            tests.append(self._member())
        self._take()
        return lambda letter: any(test(letter) for test in tests) != negated

    def _member(self) -> Test:
        if self._eat("[:"):
            name, closed, rest = self._pattern[self._at :].partition(":]")
            if not closed or name not in _POSIX:
                raise ValueError("unknown character class")
            self._at = len(self._pattern) - len(rest)
            return _POSIX[name]
        low = self._take()
        if low == "\\":
            low = self._take()
            if test := _class(low):
                return test
            low = _ESCAPES.get(low, low)
        if self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            return _literal(low)
        self._take()
        high = self._take()
        if high == "\\":
            high = self._take()
        if high < low:
            raise ValueError("bad range")
        return _range(low, high)


def _any(letter: str) -> bool:
    return letter != "\n"


def _class(letter: str) -> Test | None:
    test = _CLASSES.get(letter.lower())
    if test is None or letter.islower():
        return test
    return lambda other: not test(other)


def _literal(letter: str) -> Test:
    folded = letter.casefold()
    return lambda other: other.casefold() == folded


def _range(low: str, high: str) -> Test:
    return lambda other: any(low <= case <= high for case in (other, other.lower(), other.upper()))


class Regexp:
    """A compiled pattern. Raises ValueError where it is none."""

    def __init__(self, pattern: str) -> None:
        self._steps: list[Node] = []
        self._visits = 0
        if len(pattern) > 2 * MAX_STATES:
            raise ValueError("pattern is too long")
        self._emit(_Parser(pattern).parse())
        self._add(("match",))

    def find(self, text: str, start: int = 0, *, tick: Callable[[], None]) -> Span | None:
        """The leftmost match, its longest end; `tick` is called for every letter read."""
        threads: dict[int, int] = {}  # instruction → where its match began
        best: Span | None = None
        for at in range(start, len(text) + 1):
            tick()
            current: dict[int, int] = {}
            for step, begun in threads.items():
                self._follow(step, begun, current, text, at)
            if best is None:
                self._follow(0, at, current, text, at)
            best = self._matched(current, best, at)
            threads = self._read(current, text[at], best) if at < len(text) else {}
            if not threads and best is not None:
                break
        return best

    def _matched(self, current: dict[int, int], best: Span | None, at: int) -> Span | None:
        begun = current.get(len(self._steps) - 1)
        if begun is None or (best is not None and begun > best[0]):
            return best
        return begun, at

    def _read(self, current: dict[int, int], letter: str, best: Span | None) -> dict[int, int]:
        threads: dict[int, int] = {}
        for step, begun in current.items():
            here = self._steps[step]
            if here[0] == "one" and here[1](letter) and (best is None or begun <= best[0]):
                threads[step + 1] = min(begun, threads.get(step + 1, begun))
        return threads

    def _follow(self, step: int, begun: int, current: dict[int, int], text: str, at: int) -> None:
        """Every instruction that can be reached without reading; the earliest beginning wins."""
        waiting = [step]
        while waiting:
            place = waiting.pop()
            if current.get(place, begun + 1) <= begun:
                continue
            current[place] = begun
            here = self._steps[place]
            if here[0] == "split":
                waiting += [here[2], here[1]]
            elif here[0] == "jump":
                waiting.append(here[1])
            elif here[0] == "edge" and _at_edge(here[1], text, at):
                waiting.append(place + 1)

    def _add(self, step: Node) -> int:
        if len(self._steps) >= MAX_STATES:
            raise ValueError("pattern is too long")
        self._steps.append(step)
        return len(self._steps) - 1

    def _emit(self, node: Node) -> None:
        kind = node[0]
        self._visits += 1
        if self._visits > MAX_VISITS:
            raise ValueError("pattern is too long")
        if kind == "and":
            for part in node[1]:
                self._emit(part)
        elif kind == "or":
            self._emit_choice(node[1])
        elif kind == "repeat":
            self._emit_repeat(*node[1:])
        else:
            self._add(node)

    def _emit_choice(self, branches: list[Node]) -> None:
        jumps: list[int] = []
        for branch in branches[:-1]:
            split = self._add(("split",))
            self._emit(branch)
            jumps.append(self._add(("jump",)))
            self._steps[split] = ("split", split + 1, len(self._steps))
        self._emit(branches[-1])
        for jump in jumps:
            self._steps[jump] = ("jump", len(self._steps))

    def _emit_repeat(self, node: Node, low: int, high: int | None) -> None:
        for _ in range(low):
            self._emit(node)
        if high is None:
            split = self._add(("split",))
            self._emit(node)
            self._add(("jump", split))
            self._steps[split] = ("split", split + 1, len(self._steps))
            return
        splits: list[int] = []
        for _ in range(high - low):
            splits.append(self._add(("split",)))
            self._emit(node)
        for split in splits:
            self._steps[split] = ("split", split + 1, len(self._steps))


def _at_edge(edge: str, text: str, at: int) -> bool:
    if edge == "^":
        return at == 0
    if edge == "$":
        return at == len(text)
    around = [0 <= place < len(text) and _CLASSES["w"](text[place]) for place in (at - 1, at)]
    return (around[0] != around[1]) == (edge == "b")


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Regexp:
    """Raises ValueError."""
    return Regexp(pattern)
