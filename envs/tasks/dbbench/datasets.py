"""The benchmark's items, and questions over Wikipedia's tables."""

import csv
import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Item
from agentrl.envs.tasks.datasets import Dataset, locate, locate_file, read_rows
from agentrl.envs.tasks.dbbench.databases.functions import key
from agentrl.envs.tasks.dbbench.problem import Problem, Table, table_description

TASK = "dbbench"
AGENTBENCH = Dataset(
    TASK,
    "agentbench",
    ("dbbench/agentbench_dev.jsonl",),
    "data/dbbench/dev.jsonl of the repository THUDM/AgentBench, as agentbench_dev.jsonl",
    "Apache-2.0",
    "60 (dev)",
    shipped={"dbbench/agentbench_dev.jsonl": "agentbench/dbbench/dev.jsonl"},
)
STANDARD = Dataset(
    TASK,
    "agentbench-standard",
    ("dbbench/agentbench_standard.jsonl",),
    "data/dbbench/standard.jsonl of the repository THUDM/AgentBench, as agentbench_standard.jsonl",
    "Apache-2.0",
    "300 (standard), of agentbench",
    origin=False,
    shipped={"dbbench/agentbench_standard.jsonl": "agentbench/dbbench/standard.jsonl"},
)
WIKITABLEQUESTIONS = Dataset(
    TASK,
    "wikitablequestions",
    tuple(
        f"dbbench/wikitablequestions/{name}"
        for name in ("training.tsv", "pristine-seen-tables.tsv", "csv.tar.xz")
    ),
    "data/training.tsv, data/pristine-seen-tables.tsv and csv/ (packed as csv.tar.xz) of the "
    "repository ppasupat/WikiTableQuestions",
    "CC-BY-SA-4.0",
    "14,152 (train), 3,536 (test)",
)
DATASETS = (AGENTBENCH, STANDARD, WIKITABLEQUESTIONS)
SPLITS: Mapping[str, Mapping[str, str]] = {
    "agentbench": {"dev": AGENTBENCH.paths[0], "standard": STANDARD.paths[0]},
    "wikitablequestions": {"train": "training.tsv", "test": "pristine-seen-tables.tsv"},
}
MAX_NAME = 64  # characters of a name in MySQL
_ESCAPES = {"p": "|", "n": "\n", "\\": "\\"}


class _Column(msgspec.Struct):
    name: str


class _Shape(msgspec.Struct):
    columns: list[_Column]
    rows: list[list[str | int | float | bool | None]]


class _Placed(msgspec.Struct):
    table_name: str
    table_info: _Shape


class _Line(msgspec.Struct):
    """A line of the benchmark's file."""

    description: str
    type: list[str]
    table: _Placed
    label: list[str | int | float] | None = None
    add_description: str | None = None
    evidence: str | None = None
    answer_md5: str | None = None


def items(origin: str, split: str, given: str = "") -> tuple[Item, ...]:
    """Read the items of a split, in the order of the files. Raises ItemError."""
    if origin == AGENTBENCH.name:
        dataset = AGENTBENCH if split == "dev" else STANDARD
        return tuple(_benchmark(locate_file(dataset, SPLITS[origin][split], given), split))
    return tuple(_wiki(given, split))


def tables(given: str = "") -> dict[str, Mapping[str, Any]]:
    """Read the tables of WikiTableQuestions, by path. Raises ItemError."""
    return wiki_tables(_wiki_folder(given) / "csv.tar.xz")


def _wiki_folder(given: str) -> Path:
    return locate(WIKITABLEQUESTIONS, given) / Path(WIKITABLEQUESTIONS.paths[0]).parent


def _benchmark(path: Path, split: str) -> Iterator[Item]:
    for number, (place, row) in enumerate(read_rows(path)):
        try:
            parsed = msgspec.json.decode(row, type=_Line)
            problem = _problem(parsed)
        except (msgspec.MsgspecError, IndexError) as error:
            raise ItemError(f"{place}: {error}") from error
        yield Item(TASK, f"{split}-{number}", msgspec.to_builtins(problem))


def _problem(line: _Line) -> Problem:
    shape = line.table.table_info
    rows = [["" if cell is None else str(cell) for cell in row] for row in shape.rows]
    # MySQL takes no column without a name; the prompt tells of it by its place.
    names = [column.name.strip() or f"column {n}" for n, column in enumerate(shape.columns, 1)]
    table = Table(line.table.table_name, names, rows)
    kind = line.type[0]
    problem = Problem(
        question=line.description,
        tables=[table],
        kind=kind,
        evidence=line.evidence or "",
        description=line.add_description or "",
    )
    labels = [str(label) for label in line.label or ()]
    if not problem.modifies:
        return msgspec.structs.replace(problem, answers=labels)
    # A hash is written as the driver's rows: [('…',)]
    md5 = (line.answer_md5 or "").strip("[](),'\" ")
    return msgspec.structs.replace(problem, answer_md5=md5, gold_sql="".join(labels[:1]))


def _wiki(given: str, split: str) -> Iterator[Item]:
    """Drop repeated questions and those without a table or an answer."""
    folder = _wiki_folder(given)
    tables = wiki_tables(folder / "csv.tar.xz")
    splits = SPLITS[WIKITABLEQUESTIONS.name]
    seen: set[tuple[str, str]] = set()
    for name in ("train", "test"):  # a question of train is not one of test
        for question_id, question, context, target in _questions(folder / splits[name]):
            answers = [unescape(value) for value in target.split("|")]
            proper = context in tables and any(answer.strip() for answer in answers)
            if proper and (question, context) not in seen:
                seen.add((question, context))
                if name == split:
                    table = tables[context]
                    yield Item(TASK, question_id, _content(question, table, answers))


def _questions(path: Path) -> Iterator[tuple[str, str, str, str]]:
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[1:], 2):
        fields = line.split("\t")
        if len(fields) == 4:
            yield fields[0], unescape(fields[1]), fields[2], fields[3]
        elif line:
            raise ItemError(f"{path}: line {number}: {len(fields)} fields, not 4")


def _content(question: str, table: Mapping[str, Any], answers: list[str]) -> dict[str, Any]:
    """Return an item's content; its questions share the table."""
    description = table_description(table["name"], table["columns"])
    return {"question": question, "tables": [table], "answers": answers, "description": description}


def wiki_tables(path: Path) -> dict[str, Mapping[str, Any]]:
    """Read tables with header and rows, by path: `csv/203-csv/590.csv`. Raises ItemError."""
    tables: dict[str, Mapping[str, Any]] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name.endswith(".csv") and (file := archive.extractfile(member)):
                    text = file.read().decode("utf-8", errors="replace")
                    if table := _table(member.name, text):
                        tables[member.name] = table
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ItemError(f"{path}: {error}") from error
    return tables


def _table(path: str, text: str) -> Mapping[str, Any] | None:
    rows = [row for row in table_rows(text) if row]
    if not rows:
        return None
    header, *rest = rows
    folder, _, name = path.removesuffix(".csv").rpartition("/")
    width = len(header)
    return {
        "name": f"table_{folder.rpartition('/')[2].removesuffix('-csv')}_{name}",
        "columns": column_names(header),
        "rows": [[*row, *[""] * width][:width] for row in rest],
    }


def table_rows(text: str) -> list[list[str]]:
    r"""Parse a CSV file in which `\"` is a quote and `\\` a backslash. Raises ItemError."""
    file = io.StringIO(text, newline="")
    try:
        return list(csv.reader(file, doublequote=False, escapechar="\\"))
    except csv.Error as error:
        raise ItemError(f"a table's file: {error}") from error


def column_names(header: Sequence[str]) -> list[str]:
    """Make names valid in MySQL and SQLite: not empty, not too long, unique ignoring case."""
    names: list[str] = []
    used: set[str] = set()
    for cell in header:
        printable = "".join(
            letter if letter.isprintable() and letter <= "\uffff" else " " for letter in cell
        )
        base = " ".join(printable.split())[:MAX_NAME].strip() or "column"
        name, number = base, 1
        while key(name) in used:
            number += 1
            name = f"{base[: MAX_NAME - len(str(number)) - 1].strip()} {number}"
        used.add(key(name))
        names.append(name)
    return names


def unescape(text: str) -> str:
    r"""Unescape a field of the release's TSV: `\p` is |, `\n` a new line, `\\` a backslash."""
    parts: list[str] = []
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            following = next(letters, "")
            parts.append(_ESCAPES.get(following, letter + following))
        else:
            parts.append(letter)
    return "".join(parts)
