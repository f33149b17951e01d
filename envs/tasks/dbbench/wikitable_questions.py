"""Questions with SQL that answers them, over the tables of WikiTableQuestions.

    csv.tar.xz ─▶ tables with short, plain cells ─▶ a template with cells of one row ─▶ Problem

The dataset's own questions have answers and no SQL: nobody can demonstrate them. All questions
about one table are in one split.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from agentrl.envs.tasks.dbbench.problem import Problem, Table, Template, table_description
from agentrl.envs.tasks.generated import Drawn

MOST_COLUMNS, MOST_NAMES = 8, 80  # of a table, and letters of all their names
FEWEST_ROWS = 4
MOST_CELL = 32  # letters of a cell that a question is about
MOST_ROW = 100  # letters of a row that is added
_PLAIN = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:/()&-")


# Slots: `t` the table; `a`, `b` columns; `x` a cell of a, `y` one of b in the same row.
_EQUAL = "select {b_} from {t_} where {a_}='{x}'"
LOOK_UP = (
    Template("What is the {b} where the {a} is {x}?", _EQUAL),
    Template("Which {b} has the {a} {x}?", _EQUAL),
)
COUNT = (
    Template("How many rows have {x} as their {a}?", "select count(*) from {t_} where {a_}='{x}'"),
)
EXTREME = (
    Template(
        "Which {b} has the highest {a}?", "select {b_} from {t_} order by {a_}+0 desc limit 1"
    ),
    Template("Which {b} has the lowest {a}?", "select {b_} from {t_} order by {a_}+0 asc limit 1"),
)
CHANGE = (
    Template(
        "Set the {b} to {y} where the {a} is {x}.", "update {t_} set {b_}='{y}' where {a_}='{x}'"
    ),
    Template("Add a row: {row}.", "insert into {t_} ({columns}) values ({values})"),
)
GROUPS = (LOOK_UP, COUNT, EXTREME, CHANGE)


class Tables:
    """Draws questions. `tables`: as `datasets.wiki_tables` gives them."""

    def __init__(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        every = (msgspec.convert(tables[path], Table) for path in sorted(tables))
        self._tables = [table for table in every if _is_fit(table)]

    def draw(self, random: Random, number: int) -> Drawn:
        """Return content and split key of item `number`; None if the table has no such question."""
        table = random.choice(self._tables)
        group = GROUPS[number % len(GROUPS)]
        template = group[number // len(GROUPS) % len(group)]
        if template.kind == "INSERT":
            problem = _draw_insert(table, template, random)
        else:
            problem = _draw_lookup(table, template, random, group)
        return None if problem is None else (msgspec.to_builtins(problem), table.name)


def _draw_lookup(
    table: Table, template: Template, random: Random, group: Sequence[Template]
) -> Problem | None:
    """Draw a question about a cell of one column by a cell of another in the same row."""
    first, second = random.sample(range(len(table.columns)), 2)
    cells = [row[first] for row in table.rows]
    at: int | None = random.randrange(len(table.rows))
    if group is EXTREME:
        at = _extreme(cells, highest="desc" in template.sql)
    if at is None:
        return None
    asked, answer = cells[at], table.rows[at][second]
    alike = sum(cell.casefold().strip() == asked.casefold().strip() for cell in cells)
    changed = random.choice(table.rows)[second] if template.kind == "UPDATE" else answer
    if group is COUNT:
        answer = str(alike)
    if group is not EXTREME and (alike > 1) != (group is COUNT):
        return None
    if not (_is_plain(asked) and _is_plain(changed)):
        return None
    if template.kind == "UPDATE" and changed == answer:
        return None
    slots = {
        "a": table.columns[first],
        "b": table.columns[second],
        "x": asked,
        "y": changed,
        "t_": _quoted(table.name),
        "a_": _quoted(table.columns[first]),
        "b_": _quoted(table.columns[second]),
    }
    return _problem(table, template, slots, [] if template.kind == "UPDATE" else [answer])


def _draw_insert(table: Table, template: Template, random: Random) -> Problem | None:
    """Draw a row whose cells come from different rows."""
    row = [random.choice(table.rows)[place] for place in range(len(table.columns))]
    if not all(map(_is_plain, row)) or sum(map(len, row)) > MOST_ROW:
        return None
    slots = {
        "row": ", ".join(f"{name} {cell}" for name, cell in zip(table.columns, row, strict=True)),
        "t_": _quoted(table.name),
        "columns": ", ".join(map(_quoted, table.columns)),
        "values": ", ".join(f"'{cell}'" for cell in row),
    }
    return _problem(table, template, slots, [])


def _problem(
    table: Table, template: Template, slots: Mapping[str, str], answers: list[str]
) -> Problem:
    return Problem(
        question=template.question.format_map(slots),
        tables=[table],
        kind=template.kind,
        answers=answers,
        gold_sql=template.sql.format_map(slots),
        description=table_description(table.name, table.columns),
    )


def _extreme(cells: Sequence[str], *, highest: bool) -> int | None:
    """Return the row of the one extreme number, or None if a cell is no number or two tie."""
    try:
        numbers = [float(cell) for cell in cells]
    except ValueError:
        return None
    extreme = max(numbers) if highest else min(numbers)
    return numbers.index(extreme) if numbers.count(extreme) == 1 else None


def _is_fit(table: Table) -> bool:
    names = table.columns
    return (
        2 <= len(names) <= MOST_COLUMNS
        and len(table.rows) >= FEWEST_ROWS
        and sum(map(len, names)) <= MOST_NAMES
        and all(_is_plain(name) for name in names)
    )


def _is_plain(cell: str) -> bool:
    """Return whether a text can stand in a question and in SQL as it is."""
    return 0 < len(cell) <= MOST_CELL and cell == cell.strip() and set(cell) <= _PLAIN


def _quoted(name: str) -> str:
    return f"`{name}`"
