"""How much work a function does, counted in lines of Python: alike on every machine."""

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any


def count_lines(function: Callable[[], object], *, most: int = 10_000_000) -> int:
    """Lines of Python that a call executes, in this thread; an AssertionError beyond `most`.

    An error that the call itself raises ends the count. Loops within C are not seen.
    """
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        assert count <= most, f"more than {most} lines"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(ValueError):
            function()
    finally:
        sys.settrace(before)
    return count


def grows_linearly(work: Callable[[int], object], size: int) -> bool:
    """Return whether `work(2 * size)` executes at most 2.5 times the lines of `work(size)`."""
    return count_lines(lambda: work(2 * size)) <= 2.5 * count_lines(lambda: work(size))
