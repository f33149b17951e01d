"""The demonstrator's reading of results and its mistakes."""

from random import Random

from agentrl.envs.contract import Message
from agentrl.envs.tasks.dbbench.expert import DbbenchExpert, make_mistake, miscopy_answers, values
from agentrl.envs.tasks.dbbench.problem import Problem, Table

TABLE = Table("staff", ["name", "city", "pay"], [["kim", "oslo", "52"], ["bob", "rome", "17"]])
SQL = "select max(pay) from staff where city='oslo'"


def test_values_are_read_row_by_row() -> None:
    assert values("[('kim', 3), ('bob', -1.5), (None, '')]") == [
        "kim",
        "3",
        "bob",
        "-1.5",
        "None",
        "",
    ]
    assert values("[]") == []
    assert values("Error executing query: 'x' 3") == []


def test_it_queries_then_commits_what_it_read() -> None:
    expert = DbbenchExpert(Problem("?", [TABLE], gold_sql=SQL), seed=0, noise=0.0)
    assert not expert.answers_unseen
    assert expert.act([Message("user", "?")]).arguments == {"query": SQL}
    assert expert.act([Message("tool", "[('52',)]")]).arguments == {"answers": ["52"]}


def test_without_sql_it_commits_the_answers_of_the_item() -> None:
    problem = Problem("?", [TABLE], answers=["oslo", "rome"])
    expert = DbbenchExpert(problem, seed=0, noise=0.0)
    assert expert.answers_unseen
    assert expert.act([Message("user", "?")]).arguments == {"answers": ["oslo", "rome"]}
    errs = DbbenchExpert(problem, seed=0, noise=1.0)
    assert errs.act([Message("user", "?")]).arguments != {"answers": ["oslo", "rome"]}


def test_a_careless_one_leaves_out_the_condition() -> None:
    expert = DbbenchExpert(Problem("?", [TABLE], gold_sql=SQL), seed=0, noise=0.0, careless=1.0)
    assert expert.act([Message("user", "?")]).arguments == {"query": "select max(pay) from staff"}


def test_it_tries_again_after_an_error_but_not_for_ever() -> None:
    expert = DbbenchExpert(Problem("?", [TABLE], gold_sql=SQL), seed=0, noise=0.0)
    names = [expert.act([Message("tool", "Error: broken")]).name for _ in range(4)]
    assert names == ["execute_sql"] * 3 + ["commit_final_answer"]


def test_a_mistake_changes_the_statement_and_only_in_words_it_knows() -> None:
    mistakes = {make_mistake(SQL, TABLE, Random(seed)) for seed in range(200)}
    assert SQL not in mistakes
    assert {
        "select max(pay) from staff",
        "select min(pay) from staff where city='oslo'",
        "select max(name) from staff where city='oslo'",
        "select max(pay) from staff where city='rome'",
    } <= mistakes


def test_a_wrong_copy_loses_or_replaces_one_answer() -> None:
    copies = [miscopy_answers(["a", "b"], TABLE, Random(seed)) for seed in range(50)]
    assert {len(copy) for copy in copies} == {1, 2}
    assert ["a", "b"] not in copies
