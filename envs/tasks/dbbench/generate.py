"""Generated items: a small table of one of four themes, and a question from a template.

A template's SQL, run on the table, gives the answers or the changed table's hash. Words come from
closed lists and numbers within a column differ, so that no answer is a tie.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import msgspec

from agentrl.envs.tasks.dbbench.databases.sqlite import SqliteDatabase
from agentrl.envs.tasks.dbbench.problem import Problem, Table, Template
from agentrl.envs.tasks.generated import Drawn
from agentrl.envs.tasks.options import Difficulty

_NAMES = ["kim", "bob", "eva", "tom", "ann", "joe", "lea", "sam", "ida", "jon", "mia", "ben"]
_GOODS = ["cup", "hat", "pen", "bag", "key", "fan", "rug", "mat", "jar", "box", "pan", "bell"]
_PETS = ["cat", "dog", "fox", "owl", "pig", "hen", "cow", "ant", "bee", "emu", "yak", "rat"]
_CITIES = ["oslo", "rome", "lima", "cairo", "delhi", "paris"]
_COLORS = ["red", "blue", "green", "gold", "black", "white"]
_FOODS = ["corn", "rice", "fish", "nuts", "hay", "milk"]


@dataclass(frozen=True, slots=True)
class Theme:
    """A kind of table: a key column, a column to group by, two columns of numbers."""

    table: str
    key: str
    keys: list[str]
    group: str
    groups: list[str]
    numbers: tuple[str, str]


THEMES = (
    Theme("staff", "name", _NAMES, "city", _CITIES, ("pay", "age")),
    Theme("shop", "item", _GOODS, "color", _COLORS, ("price", "stock")),
    Theme("zoo", "pet", _PETS, "food", _FOODS, ("weight", "years")),
    Theme("team", "player", _NAMES, "club", _CITIES, ("goals", "games")),
)


# The slots are those of `_slots`.
_EASY = (
    Template(
        "What is the {num} of the {key} {name}?",
        "select {num} from {t} where {key}='{name}'",
        "{num} of {name}?",
    ),
    Template(
        "What is the {high} {num} in the table?", "select {max}({num}) from {t}", "{high} {num}?"
    ),
    Template(
        "How many rows have the {group} {value}?",
        "select count(*) from {t} where {group}='{value}'",
        "how many {group} {value}?",
    ),
    Template(
        "What is the total {num} of all rows with the {group} {value}?",
        "select sum({num}) from {t} where {group}='{value}'",
        "total {num} {group} {value}?",
    ),
    Template(
        "List every {key} with the {group} {value}, ordered by {num}.",
        "select {key} from {t} where {group}='{value}' order by {num}",
        "list {key} {group} {value} by {num}",
    ),
    Template(
        "Change the {num} of the {key} {name} to {n}.",
        "update {t} set {num}='{n}' where {key}='{name}'",
        "set {num} of {name} to {n}",
    ),
    Template(
        "Add a row with the values {words}, in the order of the columns.",
        "insert into {t} values({row})",
        "add {words}",
    ),
    Template(
        "Remove all rows with the {group} {value}.",
        "delete from {t} where {group}='{value}'",
        "remove {group} {value}",
    ),
)
_MEDIUM = (
    Template(
        "Which {key} has the {high} {num}?",
        "select {key} from {t} order by {num} {desc} limit 1",
        "{key} with {high} {num}?",
    ),
    Template(
        "How many rows with the {group} {value} have a {num} over {n}?",
        "select count(*) from {t} where {group}='{value}' and {num}>'{n}'",
        "how many {group} {value} {num} over {n}?",
    ),
    Template(
        "What is the {high} {num} among the rows with the {group} {value}?",
        "select {max}({num}) from {t} where {group}='{value}'",
        "{high} {num} {group} {value}?",
    ),
    Template(
        "How many different values of {group} are there?",
        "select count(distinct {group}) from {t}",
        "how many different {group}?",
    ),
    Template(
        "Change the {num} of all rows with the {group} {value} to {n}.",
        "update {t} set {num}='{n}' where {group}='{value}'",
        "set {num} of {group} {value} to {n}",
    ),
    Template(
        "Remove all rows with a {num} over {n}.",
        "delete from {t} where {num}>'{n}'",
        "remove {num} over {n}",
    ),
    Template(
        "Which of {name} and {other} has the {high} {num}?",
        "select {key} from {t} where {key} in ('{name}','{other}') order by {num} {desc} limit 1",
        "{high} {num} of {name} and {other}?",
    ),
    Template(
        "How many rows does each {group} have? List {group} and number.",
        "select {group}, count(*) from {t} group by {group}",
        "rows of each {group}?",
    ),
)
_HARD = (
    Template(
        "What is the {high} {num} of each {group}? List the {group} and the number.",
        "select {group}, {max}({num}) from {t} group by {group}",
        "{high} {num} of each {group}?",
    ),
    Template(
        "How much higher is the highest {num} than the lowest?",
        "select max({num})-min({num}) from {t}",
        "highest minus lowest {num}?",
    ),
    Template(
        "How many rows have a {num} above the average {num}?",
        "select count(*) from {t} where {num}+0>(select avg({num}) from {t})",
        "how many {num} over average?",
    ),
    Template(
        "How many values of {group} occur in more than one row?",
        "select count(*) from (select {group} from {t} group by {group} having count(*)>1) g",
        "how many {group} more than once?",
    ),
    Template(
        "What is the largest total {num} of one {group}?",
        "select max(s) from (select sum({num}) s from {t} group by {group}) g",
        "largest total {num} of one {group}?",
    ),
    Template(
        "List the two values of {key} with the {high} {num}.",
        "select {key} from {t} order by {num}+0 {desc} limit 2",
        "two {key} with {high} {num}?",
    ),
    Template(
        "Add {n} to the {num} of all rows with the {group} {value}.",
        "update {t} set {num}={num}+{n} where {group}='{value}'",
        "add {n} to {num} of {group} {value}",
    ),
    Template(
        "Remove all rows with the {group} {value} and a {num} over {n}.",
        "delete from {t} where {group}='{value}' and {num}+0>{n}",
        "remove {group} {value} {num} over {n}",
    ),
)
TEMPLATES: Mapping[Difficulty, tuple[Template, ...]] = {
    "easy": _EASY,
    "medium": _EASY + _MEDIUM,
    "hard": _MEDIUM + _HARD,
}
_EXTREMES = (("highest", "max", "desc"), ("lowest", "min", "asc"))
_TIMEOUT_S = 10.0  # of a gold statement


def draw(difficulty: Difficulty, random: Random, number: int) -> Drawn:
    """Return content and split key of item `number`, or None if the question has no answer."""
    templates = TEMPLATES[difficulty]
    template = templates[number % len(templates)]
    theme = random.choice(THEMES)
    table = _table(theme, random)
    slots = _slots(theme, table, random)
    problem = Problem(
        question=template.question.format_map(slots),
        short=template.short.format_map(slots),
        tables=[table],
        kind=template.kind,
        gold_sql=template.sql.format_map(slots),
        description=f"The name of the table is {table.name}, its columns are "
        f"{', '.join(table.columns)}.",
    )
    solved = _solve(problem)
    if solved is None:
        return None
    key = "\n".join([solved.short, solved.kind, *solved.answers])
    return msgspec.to_builtins(solved), key


def _table(theme: Theme, random: Random) -> Table:
    """Draw a table of 5–8 rows, the key column first."""
    columns = [theme.group, *random.sample(theme.numbers, random.choice((1, 2)))]
    random.shuffle(columns)
    count, groups = random.randint(5, 8), random.sample(theme.groups, 3)
    cells = {
        theme.key: random.sample(theme.keys, count),
        theme.group: random.choices(groups, k=count),
    }
    for column in columns:
        if column != theme.group:
            cells[column] = [str(value) for value in random.sample(range(10, 100), count)]
    names = [theme.key, *columns]
    return Table(
        theme.table, names, [list(row) for row in zip(*(cells[n] for n in names), strict=True)]
    )


def _slots(theme: Theme, table: Table, random: Random) -> dict[str, str]:
    """Draw a value for every slot of a template."""
    chosen = random.choice(table.rows)
    row = dict(zip(table.columns, chosen, strict=True))
    taken = {cells[0] for cells in table.rows}
    fresh = {
        column: str(random.randint(10, 99)) if column in theme.numbers else row[column]
        for column in table.columns
    }
    fresh[theme.key] = random.choice([name for name in theme.keys if name not in taken])
    high, aggregate, order = random.choice(_EXTREMES)
    return {
        "t": table.name,
        "key": theme.key,
        "group": theme.group,
        "num": random.choice([column for column in table.columns if column in theme.numbers]),
        "name": row[theme.key],
        "other": table.rows[table.rows.index(chosen) - 1][0],
        "value": row[theme.group],
        "n": str(random.randint(10, 99)),
        "high": high,
        "max": aggregate,
        "desc": order,
        "words": " ".join(fresh.values()),
        "row": ",".join(f"'{value}'" for value in fresh.values()),
    }


def _solve(problem: Problem) -> Problem | None:
    """Return the problem with its answers or hash, or None if there is none or nothing changes."""
    database = SqliteDatabase(problem.tables, timeout_s=_TIMEOUT_S)
    try:
        before = database.table_hash()
        answers = [str(cell) for row in database.rows(problem.gold_sql) for cell in row]
        after = database.table_hash()
    except sqlite3.Error as error:
        raise AssertionError(f"template: {problem.gold_sql}: {error}") from error
    finally:
        database.close()
    if problem.modifies:
        return msgspec.structs.replace(problem, answer_md5=after) if after != before else None
    return msgspec.structs.replace(problem, answers=answers) if answers else None
