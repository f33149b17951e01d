"""MySQL's functions that look for something in a text. Standard library only.

What they do may take long, so each calls `tick` as it goes, which raises once time is up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from agentrl.envs.tasks.dbbench.regexp import compiled
from agentrl.envs.tasks.dbbench.scalars import Function, bounded, textual
from agentrl.envs.tasks.dbbench.values import Value, key, text, whole

Tick = Callable[[], None]


def matching(tick: Tick) -> dict[str, Function]:
    """LIKE, LOCATE and regular expressions. A bad pattern is an error of the statement."""
    place = partial(locate, tick=tick)
    return {
        "like": partial(like, tick=tick),
        "locate": textual(place),
        "position": textual(place),
        "instr": textual(lambda word, part: place(text(part) or "", word)),
        **_of_patterns(tick),
    }


def like(word: Value, pattern: Value, escape: Value = "\\", *, tick: Tick) -> int | None:
    """Letter by letter: `%` any letters, `_` one."""
    if word is None or pattern is None:
        return None
    letters = [key(letter) for letter in text(word) or ""]
    signs = marks(text(pattern) or "", text(escape) or "")
    at = mark = 0
    back, resume = -1, 0
    while at < len(letters):
        if mark < len(signs) and signs[mark] == "any":
            back, resume, mark = mark, at, mark + 1
        elif mark < len(signs) and signs[mark] in ("one", (letters[at],)):
            at, mark = at + 1, mark + 1
        elif back >= 0:
            tick()
            resume += 1
            at, mark = resume, back + 1
        else:
            return 0
    return int(all(each == "any" for each in signs[mark:]))


def marks(pattern: str, escape: str) -> list[str | tuple[str]]:
    marks: list[str | tuple[str]] = []
    letters = iter(pattern)
    for letter in letters:
        if letter == escape:
            marks.append((key(next(letters, letter)),))
        else:
            marks.append({"%": "any", "_": "one"}.get(letter) or (key(letter),))
    return marks


def locate(part: str, whole_text: Value, start: Value = 1, *, tick: Tick) -> int:
    """A place counts where as many bytes as `part` has are equal to it."""
    word, begin, size = text(whole_text) or "", (whole(start) or 0) - 1, len(part.encode())
    if begin < 0 or begin > len(word):
        return 0
    wanted = key(part)
    for place in range(begin, len(word) + 1):
        tick()
        head = word[place : place + size].encode()[:size]
        if len(head) == size and key(head.decode(errors="replace")) == wanted:
            return place + 1
    return 0


def _of_patterns(tick: Tick) -> dict[str, Function]:
    def matches(word: Value, pattern: Value) -> int | None:
        if word is None or pattern is None:
            return None
        found = compiled(text(pattern) or "").find(text(word) or "", tick=tick)
        return int(found is not None)

    def first(word: Value, pattern: Value) -> str | None:
        if word is None or pattern is None:
            return None
        found = compiled(text(pattern) or "").find(text(word) or "", tick=tick)
        return (text(word) or "")[found[0] : found[1]] if found else ""

    def replace(word: Value, pattern: Value, new: Value) -> str | None:
        if word is None or pattern is None or new is None:
            return None
        regexp, left, parts, at = compiled(text(pattern) or ""), text(word) or "", [""], 0
        while at <= len(left) and (found := regexp.find(left, at, tick=tick)) is not None:
            parts += [left[at : found[0]], text(new) or ""]
            if found[1] == found[0]:
                parts.append(left[found[0] : found[0] + 1])
            at = max(found[1], found[0] + 1) if found[1] == found[0] else found[1]
        return bounded("".join(parts) + left[at:])

    return {"regexp": matches, "regexp_like": matches, "regexp_substr": first} | {
        "regexp_replace": replace
    }
