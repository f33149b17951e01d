"""Tables that commands print: as wide as the terminal, or unlimited without one; and lines."""

import unicodedata
from typing import TextIO, cast

from rich.console import Console
from rich.table import Table

from agentrl.core.logging import BestEffortStream

TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # the direction of text
WIDE = 10_000  # columns of a pipe or a file: no line is broken there


def console(width: int | None = None) -> Console:
    """Of standard output; `width`: columns, instead of the terminal's."""
    found = Console(markup=False, emoji=False, width=width)
    if width is not None:
        return found
    return found if found.is_terminal else Console(markup=False, emoji=False, width=WIDE)


def plain(*heads: str) -> Table:
    """A table without lines."""
    return Table(*heads, box=None, pad_edge=False)


def lasting_console(stream: TextIO) -> Console:
    """Return a console that never fails: without a reader or room on the disk, lines are lost."""
    return Console(file=cast(TextIO, BestEffortStream(stream)), emoji=False)


def one_line(text: str, most: int) -> str:
    """Return the words of a text on one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def print_line(console: Console, line: str) -> None:
    """Print a line as it is, on any terminal."""
    console.print(
        without_controls(line), markup=False, emoji=False, highlight=False, soft_wrap=True
    )


def without_controls(text: str) -> str:
    """Replace characters that would steer a terminal, or turn the direction of its text."""
    return "".join("�" if _steers(each) else each for each in text)


def _steers(character: str) -> bool:
    kind = unicodedata.category(character)
    return (kind in ("Cc", "Cs") and character not in "\n\t") or character in TURNING
