"""Prepared questions about runs, each an SQL file that works on both databases.

A file starts with comments: its title and the meaning of its columns. Every answer covers all runs;
its first column is `run`. docs/sql.md names the questions; a test compares both.
"""

from dataclasses import dataclass
from pathlib import Path

from agentrl.core.errors import StoreError, nearest
from agentrl.db.admin.readonly import QueryResult, rows_of
from agentrl.db.store import Store

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Question:
    """`meaning`: what the title does not say. `sql`: one statement, without comments."""

    name: str
    title: str
    meaning: str
    sql: str


def questions() -> list[Question]:
    """All of them, by name."""
    return [_read(path) for path in sorted(FOLDER.glob("*.sql"))]


def question(name: str) -> Question:
    """The one of that name. Raises StoreError that names the nearest."""
    known = {each.name: each for each in questions()}
    if name not in known:
        raise StoreError(
            f"there is no question {name}{nearest(name, known)}",
            hint="list the questions with `agentrl sql --questions`",
        )
    return known[name]


def answer_question(store: Store, name: str, run: str = "") -> QueryResult:
    """The rows of one run by its name, of all runs where it is empty. Raises StoreError."""
    answer = rows_of(store, question(name).sql)
    if not run:
        return answer
    place = answer.columns.index("run")
    return QueryResult(answer.columns, [row for row in answer.rows if row[place] == run])


def _read(path: Path) -> Question:
    lines = path.read_text().splitlines()
    comments = [line.removeprefix("--").strip() for line in lines if line.startswith("--")]
    sql = "\n".join(line for line in lines if not line.startswith("--"))
    return Question(path.stem, comments[0], " ".join(comments[1:]), sql)
