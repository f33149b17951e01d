"""Tables that commands print: as wide as the terminal, or unlimited without one; and lines."""

from typing import TextIO, cast

from rich.console import Console
from rich.table import Table

from agentrl.core.logging import BestEffortStream

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


def print_line(console: Console, line: str) -> None:
    """Print a line as it is, on any terminal."""
    console.print(
        without_controls(line), markup=False, emoji=False, highlight=False, soft_wrap=True
    )


def without_controls(text: str) -> str:
    """Replace characters that would steer a terminal."""
    return "".join(each if each.isprintable() or each in "\n\t" else "�" for each in text)
