"""Tables that commands print: as wide as the terminal, or unlimited without one."""

from rich.console import Console
from rich.table import Table

WIDE = 10_000  # columns of a pipe or a file: no line is broken there


def console(width: int | None = None) -> Console:
    """Of standard output; `width`: columns, instead of the terminal's."""
    found = Console(markup=False, width=width)
    if width is not None:
        return found
    return found if found.is_terminal else Console(markup=False, width=WIDE)


def plain(*heads: str) -> Table:
    """A table without lines."""
    return Table(*heads, box=None, pad_edge=False)
