"""A demonstrator: runs the item's SQL, commits what it read. Without SQL it commits the answers.

With noise it errs as a learner does: the wrong column, value or function, a forgotten condition, a
commit before anything was read, a wrong copy. Every call stays well-formed. A careless one leaves
out the SQL's condition.
"""

import re
from collections.abc import Mapping, Sequence
from random import Random

from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.dbbench.environment import COMMIT, EXECUTE
from agentrl.envs.tasks.dbbench.problem import Problem, Table

_CELL = re.compile(r"'([^']*)'|(-?\d+(?:\.\d+)?)|None")
_WORD = re.compile(r"\w+")
_CONFUSED: Mapping[str, str] = {
    "max": "min",
    "min": "max",
    "sum": "count",
    "count": "max",
    "desc": "asc",
    "asc": "desc",
}
MAX_TRIES = 3  # of the SQL, before whatever was read is committed
DONE = "done"  # the answer committed after a change


class DbbenchExpert:
    """An Expert; `noise`: probability of an error a turn. `careless`: probability that it is
    careless for the whole episode. `answers_unseen`: it knows no SQL, only the answers.
    """

    def __init__(self, problem: Problem, *, seed: int, noise: float, careless: float = 0.0) -> None:
        self._problem = problem
        self._random = Random(seed)
        self._noise = noise
        self._tries = 0
        is_careless = careless > 0 and self._random.random() < careless
        self._sql = without_condition(problem.gold_sql) if is_careless else problem.gold_sql
        self.answers_unseen = not problem.gold_sql

    def act(self, messages: Sequence[Message]) -> ToolCall:
        table = self._problem.tables[0]
        errs = self._random.random() < self._noise
        if not self._sql:
            known = self._problem.answers
            answers = miscopy_answers(known, table, self._random) if errs else known
            return ToolCall(COMMIT, {"answers": list(answers)})
        read = values(messages[-1].content) if self._tries else []
        if self._ready(messages[-1].content, read):
            answers = read if read and not self._problem.modifies else [DONE]
            if errs:
                answers = miscopy_answers(answers, table, self._random)
            return ToolCall(COMMIT, {"answers": answers})
        if errs and self._random.random() < 0.2:
            return ToolCall(COMMIT, {"answers": [self._random.choice(_cells(table))]})
        self._tries += 1
        sql = make_mistake(self._sql, table, self._random) if errs else self._sql
        return ToolCall(EXECUTE, {"query": sql})

    def _ready(self, reply: str, read: Sequence[str]) -> bool:
        if self._tries in (0, MAX_TRIES):
            return self._tries > 0
        return bool(read) or (self._problem.modifies and not reply.startswith("Error"))


def values(result: str) -> list[str]:
    """Return the cells of a result's text, row by row; none for an error."""
    if not result.startswith("["):
        return []
    return [found[found.lastindex or 0] for found in _CELL.finditer(result)]


def without_condition(sql: str) -> str:
    return sql.split(" where ", maxsplit=1)[0]


def make_mistake(sql: str, table: Table, random: Random) -> str:
    """Return `sql` with one plausible mistake, or unchanged if none applies."""
    mistakes = [without_condition(sql)]
    for found in _WORD.finditer(sql):
        word = found[0]
        others = [column for column in table.columns if column != word]
        if word in table.columns:
            mistakes.append(_swapped(sql, found, random.choice(others)))
        elif word in _CONFUSED:
            mistakes.append(_swapped(sql, found, _CONFUSED[word]))
        elif sql[found.start() - 1] == "'":
            mistakes.append(_swapped(sql, found, random.choice(_cells(table))))
    return random.choice([mistake for mistake in mistakes if mistake != sql] or [sql])


def miscopy_answers(answers: Sequence[str], table: Table, random: Random) -> list[str]:
    """Drop one of the answers, or replace it by another cell of the table."""
    kept = list(answers)
    place = random.randrange(len(kept))
    if len(kept) > 1 and random.random() < 0.5:
        return kept[:place] + kept[place + 1 :]
    kept[place] = random.choice(_cells(table))
    return kept


def _swapped(sql: str, found: re.Match[str], word: str) -> str:
    return sql[: found.start()] + word + sql[found.end() :]


def _cells(table: Table) -> list[str]:
    return [cell for row in table.rows for cell in row]
