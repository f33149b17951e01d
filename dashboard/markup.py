"""HTML of our own, every value escaped: tables whose cells are links, and coloured tokens.

Links are plain anchors: they open in the same tab, a keyboard reaches them, and they can be kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

LONG = 40  # characters of a cell from which on it may break into lines

STYLE = """<style>
.wide { overflow-x: auto; }
.rows { width: 100%; border-collapse: collapse; font-size: 0.875rem; }
.rows th, .rows td { text-align: left; padding: 0.3rem 0.6rem; vertical-align: top;
  border-bottom: 1px solid rgba(128, 128, 128, 0.3); }
.rows a, .legend a { color: inherit; text-decoration: underline; }
.rows td, .rows th { white-space: nowrap; }
.rows td.long { white-space: normal; overflow-wrap: anywhere; }
.rows td.number, .rows th.number { text-align: right; font-variant-numeric: tabular-nums; }
.rows tr.here td { font-weight: 600; background: rgba(86, 180, 233, 0.15); }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font-family: monospace;
  font-size: 0.875rem; line-height: 1.6; max-height: 26rem; overflow-y: auto;
  border: 1px solid rgba(128, 128, 128, 0.3); border-radius: 0.4rem; padding: 0.5rem; }
.text .special { opacity: 0.6; font-style: italic; }
.legend span { padding: 0 0.4rem; margin-right: 0.6rem; }
</style>"""


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that leads somewhere."""

    text: str
    address: str


Cell = str | int | float | None | Link
Row = Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is shown. `colour`: any CSS colour, empty for none; `told`: on hovering."""

    text: str
    colour: str = ""
    told: str = ""
    special: bool = False


def table(rows: Sequence[Row], *, here: int | None = None) -> str:
    """A table with the keys of the first row as its head. `here`: the row that is looked at."""
    head = "".join(
        f'<th class="{_kind(value)}">{escape(name)}</th>' for name, value in _first(rows)
    )
    lines = [_line(row, place == here) for place, row in enumerate(rows)]
    body = "".join(lines)
    whole = f'<table class="rows"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'{STYLE}<div class="wide" tabindex="0">{whole}</div>'


def tokens(shown: Iterable[Token]) -> str:
    """Tokens one after the other, as they were read."""
    return f'{STYLE}<div class="text" tabindex="0">{"".join(map(_token, shown))}</div>'


def links(shown: Iterable[Link]) -> str:
    """Links in a row."""
    return f'{STYLE}<div class="legend">{" &nbsp; ".join(map(_cell, shown))}</div>'


def legend(entries: Mapping[str, str]) -> str:
    """What each colour means, by its words."""
    spans = (
        f'<span style="background-color: {escape(colour)}">{escape(words)}</span>'
        for words, colour in entries.items()
    )
    return f'{STYLE}<div class="legend">{"".join(spans)}</div>'


def _first(rows: Sequence[Row]) -> list[tuple[str, Cell]]:
    """Of each column its name and the first value that it has."""
    names = list(rows[0]) if rows else []
    found = {name: [row[name] for row in rows if row[name] is not None] for name in names}
    return [(name, found[name][0] if found[name] else None) for name in names]


def _kind(value: Cell) -> str:
    if isinstance(value, int | float):
        return "number"
    return "long" if isinstance(value, str) and len(value) > LONG else ""


def _line(row: Row, here: bool) -> str:
    cells = "".join(f'<td class="{_kind(value)}">{_cell(value)}</td>' for value in row.values())
    return f'<tr class="here">{cells}</tr>' if here else f"<tr>{cells}</tr>"


def _cell(value: Cell) -> str:
    if isinstance(value, Link):
        return f'<a href="{escape(value.address)}">{escape(value.text)}</a>'
    if isinstance(value, float):
        return f"{value:.3g}"
    return "–" if value is None else escape(str(value))


def _token(token: Token) -> str:
    kind = ' class="special"' if token.special else ""
    style = f' style="background-color: {escape(token.colour)}"' if token.colour else ""
    told = f' title="{escape(token.told)}"' if token.told else ""
    return f"<span{kind}{style}{told}>{escape(token.text)}</span>"
