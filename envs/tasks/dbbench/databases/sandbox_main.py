"""Runs in a sandbox: one database at a time, a JSON line in, a JSON line out.

    {"open": [table, …], "timeout_s": 60, "mysql": false} → {} or {"broken": why}
    {"sql": …} → {"text": …}     {"hash": true} → {"text": …}

It knows tables and statements; the question, the answer and the gold never come here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, TextIO, cast

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.dbbench.databases.sqlite import SqliteDatabase


class Inside:
    """Answers requests about the database that was opened last."""

    def __init__(self) -> None:
        self._database: SqliteDatabase | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, str]:
        if "open" in request:
            return self._open(request["open"], request["timeout_s"], mysql=request["mysql"])
        if self._database is None:
            raise ValueError("no database is open")
        if "sql" in request:
            return {"text": self._database.execute(request["sql"])}
        return {"text": self._database.table_hash()}

    def _open(
        self, tables: list[dict[str, Any]], timeout_s: float, *, mysql: bool
    ) -> dict[str, str]:
        if self._database is not None:
            self._database.close()
            self._database = None
        shaped = [cast(Any, SimpleNamespace(**table)) for table in tables]
        try:
            self._database = SqliteDatabase(shaped, timeout_s=timeout_s, mysql=mysql)
        except ItemError as error:
            return {"broken": str(error)}
        return {}


def serve(lines: Iterable[str], out: TextIO) -> None:
    """Answer every line of stdin."""
    inside = Inside()
    for line in lines:
        print(json.dumps(inside.answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
