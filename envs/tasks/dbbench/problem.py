"""The content of an item, and the interface of the database of an episode."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

QUERY, CHANGES = "SELECT", ("INSERT", "UPDATE", "DELETE")  # kinds of statements


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rows`: [R][C] text; every column is TEXT."""

    name: str
    columns: list[str]
    rows: list[list[str]]


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item. A query has `answers`; a change has `answer_md5` or else `gold_sql`.

    `description`: what the prompt tells of the table. `short`: the question for a compact prompt.
    """

    question: str
    tables: list[Table]
    kind: str = QUERY
    answers: list[str] = []
    answer_md5: str = ""
    gold_sql: str = ""
    evidence: str = ""
    description: str = ""
    short: str = ""

    @property
    def modifies(self) -> bool:
        return self.kind in CHANGES


@dataclass(frozen=True, slots=True)
class Template:
    """A question with slots, and the SQL that answers it. `short`: as a compact prompt asks."""

    question: str
    sql: str
    short: str = ""

    @property
    def kind(self) -> str:
        """Return the kind of the statement: a constant, so that an item leaves out the default."""
        return next((kind for kind in CHANGES if self.sql.startswith(kind.lower())), QUERY)


def table_description(name: str, columns: Sequence[str]) -> str:
    """Return what a prompt tells of a table of Wikipedia."""
    headers = ",".join(columns)
    return f"The name of this table is {name}, and the headers of this table are {headers}."


class Database(Protocol):
    """The item's tables in an engine of their own. Not thread-safe."""

    def execute(self, sql: str) -> str:
        """Run one statement; return the result as text, also errors and time-outs of an agent."""

    def table_hash(self) -> str:
        """Return `scoring.table_hash` of the item's tables now; empty if one is gone."""

    def close(self) -> None:
        """Free the engine; safe to call twice."""


class OpenDatabase(Protocol):
    def __call__(self, tables: Sequence[Table]) -> Database:
        """Open a new database with these tables. Raises ItemError, EnvironmentFailure."""
