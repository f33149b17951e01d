"""Questions over tables that came without any."""

from random import Random

import pytest

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Environment, Message
from agentrl.envs.tasks.datasets import locate
from agentrl.envs.tasks.dbbench.datasets import WIKITABLEQUESTIONS
from agentrl.envs.tasks.dbbench.task_source import DbbenchSource
from agentrl.envs.tasks.dbbench.wikitable_questions import GROUPS, Tables
from agentrl.envs.tasks.generated import split_of

CUPS = {
    "name": "table_1",
    "columns": ["Year", "Winner", "Home Ground"],
    "rows": [
        ["1990", "Ajax", "Old Park"],
        ["1991", "Bray", "New Park"],
        ["1992", "Ajax", "Old Park"],
        ["1993", "Cork", "Dale"],
    ],
}
SHORT = CUPS | {"name": "table_2", "rows": CUPS["rows"][:3]}
ODD = CUPS | {"name": "table_3", "columns": ["Year", "Winner`s", "Ground"]}


def drawn(number: int) -> list[dict[str, object]]:
    tables = Tables({"a": CUPS, "b": SHORT, "c": ODD})
    found = (tables.draw(Random(seed), number) for seed in range(200))
    return [dict(content) for content, _ in filter(None, found)]


def test_a_cell_is_asked_for_by_another_that_stands_in_one_row_only() -> None:
    found = drawn(0)
    assert {problem["tables"][0]["name"] for problem in found} == {"table_1"}  # type: ignore[index]
    asked = {(problem["question"], *problem["answers"]) for problem in found}  # type: ignore[misc]
    assert ("What is the Winner where the Year is 1993?", "Cork") in asked
    assert not any("where the Winner is Ajax" in question for question, *_ in asked)


def test_rows_are_counted_where_there_are_several() -> None:
    found = {(problem["question"], *problem["answers"]) for problem in drawn(1)}  # type: ignore[misc]
    assert found == {
        ("How many rows have Ajax as their Winner?", "2"),
        ("How many rows have Old Park as their Home Ground?", "2"),
    }


def test_the_largest_is_asked_of_numbers_alone() -> None:
    found = {(problem["gold_sql"], *problem["answers"]) for problem in drawn(2)}  # type: ignore[misc]
    order = "from `table_1` order by `Year`+0 desc limit 1"
    assert found == {
        (f"select `Winner` {order}", "Cork"),
        (f"select `Home Ground` {order}", "Dale"),
    }


def test_changes_have_sql_and_no_answer() -> None:
    change, addition = drawn(3)[0], drawn(3 + len(GROUPS))[0]
    assert (change["kind"], "answers" in change) == ("UPDATE", False)
    assert (addition["kind"], "answers" in addition) == ("INSERT", False)
    assert str(addition["question"]).startswith("Add a row: Year 199")


def test_a_question_goes_where_its_table_goes() -> None:
    draws = (Tables({"a": CUPS}).draw(Random(seed), 0) for seed in range(20))
    assert {split_of(found[1]) for found in draws if found} == {split_of("table_1")}


def played(source: DbbenchSource, environment: Environment, expert: object) -> float:
    messages: tuple[Message, ...] = environment.start().messages
    for _ in range(source.max_turns):
        outcome = environment.call([expert.act(messages)])  # type: ignore[attr-defined]
        if outcome.done:
            return outcome.reward
        messages = outcome.messages
    return 0.0


def test_the_expert_wins_over_the_tables_of_wikitablequestions() -> None:
    try:
        locate(WIKITABLEQUESTIONS)
    except ItemError as error:
        pytest.skip(str(error))
    options = {"origin": "wikitables", "style": "compact", "items": 40, "test_items": 10}
    source = DbbenchSource(options)
    names = [{i.content["tables"][0]["name"] for i in source.items(s)} for s in source.splits]
    assert not names[0] & names[1]
    for item in source.items("train"):
        environment = source.make(item)
        assert played(source, environment, source.expert(item, seed=0)) == 1.0, item.content
        environment.close()
