"""The content of an item, and the interface of the database of an episode."""

from collections.abc import Sequence
from typing import Protocol

import msgspec


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
    kind: str = "SELECT"
    answers: list[str] = []
    answer_md5: str = ""
    gold_sql: str = ""
    evidence: str = ""
    description: str = ""
    short: str = ""

    @property
    def modifies(self) -> bool:
        return self.kind in ("INSERT", "UPDATE", "DELETE")


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
