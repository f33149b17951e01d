"""HTML of our own, every value escaped: tables whose cells are links, bars, and coloured tokens.

Links are plain anchors: they open in the same tab, a keyboard reaches them, and they can be kept.
A browser draws it at once, where Streamlit's own tables and code blocks are programs it must load.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from agentrl.dashboard.theme import BLUE

LONG = 40  # characters of a cell from which on it may break into lines

# Once on each page, for all of it: with each more the browser looks at every element anew.
STYLE = """<style>
.wide { overflow-x: auto; }
.wide.low { overflow-y: auto; max-height: 26rem; }
.folded summary { cursor: pointer; font-size: 0.875rem; padding: 0.3rem 0; }
.rows td.bar { width: 100%; vertical-align: middle; }
.rows td.bar div { height: 1rem; border-radius: 3px; }
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
    """A cell with a link."""

    text: str
    address: str


Cell = str | int | float | None | Link
Row = Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class Token:
    """A token to show. `colour`: a CSS colour; empty: none. `title`: the text on hovering."""

    text: str
    colour: str = ""
    title: str = ""
    special: bool = False


def table(rows: Sequence[Row], *, here: int | None = None, low: bool = False) -> str:
    """Render a table whose columns are the keys of all rows.

    `here`: the highlighted row. `low`: limit the height and scroll.
    """
    first = _first(rows)
    head = "".join(f"<th{_kind(value)}>{escape(name)}</th>" for name, value in first.items())
    lines = [
        _line([row.get(name) for name in first], place == here) for place, row in enumerate(rows)
    ]
    return _wide(f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>", low)


def folded_table(summary: str, rows: Sequence[Row]) -> str:
    """Render a table that opens when its summary is clicked."""
    head = f"<summary>{escape(summary)}</summary>"
    return f'<details class="folded">{head}{table(rows, low=True)}</details>'


def bars(counts: Mapping[str, float]) -> str:
    """Render a bar and a number for each name, longest first."""
    most = max([*counts.values(), 1e-9])
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    lines = [
        f'<tr><td>{escape(name)}</td><td class="bar"><div style="background-color: {BLUE}; '
        f'width: {100 * number / most:.1f}%"></div></td><td class="number">{number:,}</td></tr>'
        for name, number in ordered
    ]
    return _wide(f"<tbody>{''.join(lines)}</tbody>", low=False)


def plain(text: str) -> str:
    """Render plain text line by line."""
    return f'<div class="text" tabindex="0">{escape(text)}</div>'


def _wide(rows: str, low: bool) -> str:
    kind = "wide low" if low else "wide"
    return f'<div class="{kind}" tabindex="0"><table class="rows">{rows}</table></div>'


def tokens(row: Iterable[Token]) -> str:
    """Render tokens in order."""
    return f'<div class="text" tabindex="0">{"".join(map(_token, row))}</div>'


def links(row: Iterable[Link]) -> str:
    """Render links in one row."""
    return f'<div class="legend">{" &nbsp; ".join(map(_cell, row))}</div>'


def legend(entries: Mapping[str, str]) -> str:
    """Render the meaning of each colour."""
    spans = (
        f'<span style="background-color: {escape(colour)}">{escape(words)}</span>'
        for words, colour in entries.items()
    )
    return f'<div class="legend">{"".join(spans)}</div>'


def _first(rows: Sequence[Row]) -> dict[str, Cell]:
    """Return each column's name and first non-empty value."""
    values: dict[str, Cell] = {}
    for row in rows:
        for name, value in row.items():
            if values.get(name) is None:
                values[name] = value
    return values


def _kind(value: Cell) -> str:
    """Return the cell's class as an HTML attribute."""
    if isinstance(value, int | float):
        return ' class="number"'
    return ' class="long"' if isinstance(value, str) and len(value) > LONG else ""


def _line(row: Sequence[Cell], here: bool) -> str:
    cells = "".join(f"<td{_kind(value)}>{_cell(value)}</td>" for value in row)
    return f'<tr class="here">{cells}</tr>' if here else f"<tr>{cells}</tr>"


def _cell(value: Cell) -> str:
    if isinstance(value, Link):
        return f'<a href="{escape(value.address)}">{escape(value.text)}</a>'
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "–" if value is None else escape(str(value))


def _token(token: Token) -> str:
    kind = ' class="special"' if token.special else ""
    style = f' style="background-color: {escape(token.colour)}"' if token.colour else ""
    title = f' title="{escape(token.title)}"' if token.title else ""
    return f"<span{kind}{style}{title}>{escape(token.text)}</span>"
