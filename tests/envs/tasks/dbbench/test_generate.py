"""Generated questions: their gold answers hold, and each changes or finds something."""

import pytest

from agentrl.envs.tasks.dbbench import scoring
from agentrl.envs.tasks.dbbench.databases.sqlite import SqliteDatabase
from agentrl.envs.tasks.dbbench.generate import TEMPLATES
from agentrl.envs.tasks.dbbench.problem import Problem
from agentrl.envs.tasks.dbbench.task_source import DbbenchSource
from agentrl.envs.tasks.options import read


def problems(difficulty: str, count: int) -> list[Problem]:
    items = DbbenchSource({"difficulty": difficulty, "items": count}).items("train")
    return [read(item, Problem) for item in items]


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_the_gold_hash_is_that_of_the_gold_sql_and_never_the_untouched_tables(
    difficulty: str,
) -> None:
    for problem in problems(difficulty, 60):
        database = SqliteDatabase(problem.tables, timeout_s=1.0)
        before = database.table_hash()
        database.execute(problem.gold_sql)
        assert (database.table_hash() == problem.answer_md5) == problem.modifies
        assert problem.answer_md5 != before
        database.close()


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_every_template_occurs_and_no_slot_is_left_open(difficulty: str) -> None:
    templates = TEMPLATES[difficulty]  # type: ignore[index]
    found = problems(difficulty, 2 * len(templates))
    assert [p.kind for p in found] == [t.kind for t in templates] * 2
    for problem in found:
        assert not set("{}") & set(problem.question + problem.short + problem.gold_sql)


def test_the_easy_answers_follow_from_the_rows() -> None:
    """An independent reading of three templates, without SQL."""
    for problem in problems("easy", 80):
        table, words = problem.tables[0], problem.short.rstrip("?").split()
        cells = {name: [row[n] for row in table.rows] for n, name in enumerate(table.columns)}
        if words[0] in ("highest", "lowest"):
            best = max if words[0] == "highest" else min
            assert problem.answers == [str(best(map(int, cells[words[1]])))]
        elif words[:2] == ["how", "many"]:
            assert problem.answers == [str(cells[words[2]].count(words[3]))]
        elif words[0] == "total":
            chosen = [n for n, cell in enumerate(cells[words[2]]) if cell == words[3]]
            total = sum(int(cells[words[1]][n]) for n in chosen)
            assert scoring.answers_match(problem.answers, [str(total)])


def test_easy_tables_are_small_and_their_keys_differ() -> None:
    for problem in problems("easy", 80):
        table = problem.tables[0]
        assert 5 <= len(table.rows) <= 9
        assert 3 <= len(table.columns) <= 4
        assert len({row[0] for row in table.rows}) == len(table.rows)


def test_the_templates_together_ask_for_every_kind_of_statement() -> None:
    templates = [template for group in TEMPLATES.values() for template in group]
    assert {template.kind for template in templates} == {"SELECT", "INSERT", "UPDATE", "DELETE"}
    queries = " ".join(template.sql for template in templates if template.kind == "SELECT")
    assert all(clause in queries for clause in ("count(", "order by", "group by", ">"))
