"""An episode of the database task, rule by rule."""

import sys
from functools import partial
from typing import Any

import pytest

from agentrl.core.errors import ConfigError, EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs.contract import Item, Outcome, ToolCall
from agentrl.envs.tasks.dbbench.databases.sqlite import SqliteDatabase
from agentrl.envs.tasks.dbbench.environment import DbbenchEnvironment
from agentrl.envs.tasks.dbbench.problem import Problem, Table
from agentrl.envs.tasks.dbbench.task_source import DbbenchSource

TABLE = Table("staff", ["name", "pay"], [["kim", "52"], ["bob", "17"]])
QUERY = Problem("What does kim earn?", [TABLE], answers=["52"], short="pay of kim?")
CHANGE = Problem(
    "Raise kim to 60.",
    [TABLE],
    kind="UPDATE",
    gold_sql="update staff set pay='60' where name='kim'",
)


def begun(problem: Problem, style: str = "full") -> DbbenchEnvironment:
    open_database = partial(SqliteDatabase, timeout_s=1.0)
    environment = DbbenchEnvironment(problem, style, open_database)  # type: ignore[arg-type]
    environment.start()
    return environment


def execute(query: Any) -> ToolCall:
    return ToolCall("execute_sql", {"query": query})


def commit(*answers: str) -> ToolCall:
    return ToolCall("commit_final_answer", {"answers": list(answers)})


def texts(outcome: Outcome) -> list[str]:
    return [message.content for message in outcome.messages]


def test_all_calls_of_a_message_run_in_order() -> None:
    outcome = begun(QUERY).call([execute("delete from staff"), execute("select * from staff")])
    assert texts(outcome) == ["[]", "[]"]
    assert [message.role for message in outcome.messages] == ["tool", "tool"]
    assert [message.name for message in outcome.messages] == ["execute_sql"] * 2


def test_a_commit_ends_the_episode_and_later_calls_of_the_message_do_not_run() -> None:
    environment = begun(CHANGE)
    outcome = environment.call([commit("done"), execute(CHANGE.gold_sql)])
    assert (outcome.done, outcome.reward) == (True, 0.0)


@pytest.mark.parametrize(("answer", "reward"), [("52", 1.0), ("52.001", 1.0), ("17", 0.0)])
def test_a_query_is_scored_by_its_answer(answer: str, reward: float) -> None:
    outcome = begun(QUERY).call([commit(answer)])
    assert (outcome.status, outcome.reward, outcome.score) == (Status.COMPLETED, reward, reward)


@pytest.mark.parametrize("answers", [(), ("",), ("done",), ("anything", "else")])
def test_a_change_is_scored_by_the_table_whatever_the_answer(answers: tuple[str, ...]) -> None:
    environment = begun(CHANGE)
    environment.call([execute("update staff set pay=60 where name like 'k%'")])
    assert environment.call([commit(*answers)]).reward == 1.0


@pytest.mark.parametrize("sql", ["select 1", "update staff set pay=60", "drop table staff"])
def test_another_change_does_not_score(sql: str) -> None:
    environment = begun(CHANGE)
    environment.call([execute(sql)])
    assert environment.call([commit("done")]).reward == 0.0


def test_a_known_hash_is_the_gold() -> None:
    environment = begun(Problem("?", [TABLE], kind="DELETE", answer_md5="None"))
    environment.call([execute("delete from staff")])
    assert environment.call([commit("done")]).reward == 1.0


def test_a_gold_statement_that_fails_rewards_nobody() -> None:
    environment = begun(Problem("?", [TABLE], kind="DELETE", gold_sql="delete from nowhere"))
    with pytest.raises(EnvironmentFailure, match="no such table"):
        environment.call([commit("done")])


def test_an_error_of_the_database_is_text_and_the_episode_goes_on() -> None:
    outcome = begun(QUERY).call([execute("select pay from nowhere")])
    assert not outcome.done
    assert texts(outcome) == ["Error executing query: no such table: nowhere"]


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("execute_sql", {}),
        ToolCall("execute_sql", {"query": 3}),
        ToolCall("execute_sql", {"query": "select 1", "more": 1}),
        ToolCall("execute_sql", {"query": "select 1"}, error="not JSON"),
        ToolCall("commit_final_answer", {"answers": "52"}),
        ToolCall("commit_final_answer", {"answers": [52]}),
        ToolCall("commit_final_answer", {"answers": ["52"]}, error="not JSON"),
        ToolCall("commit_final_answer", {}),
    ],
)
def test_an_ill_formed_call_is_answered_with_an_error(call: ToolCall) -> None:
    outcome = begun(QUERY).call([call])
    assert not outcome.done
    assert texts(outcome)[0].startswith("Error: ")


def test_an_unknown_tool_is_answered_as_such() -> None:
    outcome = begun(QUERY).call([ToolCall("rm", {})])
    assert texts(outcome) == ["Invalid function call. Please call a tool instead."]


@pytest.mark.parametrize("turn", ["", "I think it is 52", []])
def test_a_turn_without_a_call_is_reminded(turn: Any) -> None:
    outcome = begun(QUERY).call(turn)
    assert [message.role for message in outcome.messages] == ["user"]
    assert not outcome.done


def test_the_full_prompt_gives_evidence_then_description_then_question() -> None:
    problem = Problem("Q?", [TABLE], evidence="E.", description="D.")
    environment = DbbenchEnvironment(problem, "full", partial(SqliteDatabase, timeout_s=1.0))
    assert environment.start().messages[1].content == (
        "Evidence about the question: E.\n"
        "Additional table information about the question: D.\nQuestion: Q?\n"
    )
    environment.close()


def test_the_compact_prompt_is_a_line_a_table_and_the_short_question() -> None:
    environment = DbbenchEnvironment(QUERY, "compact", partial(SqliteDatabase, timeout_s=1.0))
    messages = environment.start().messages
    assert [m.content for m in messages] == ["dbbench", "staff: name pay\npay of kim?"]
    environment.close()


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"question": "?", "tables": []},
        {"question": 3, "tables": []},
        {"question": "?", "tables": [{"name": "t", "columns": ["a"], "rows": [[1]]}]},
        {"question": "?", "tables": [], "typo": 1},
        {
            "question": "?",
            "kind": "DELETE",
            "tables": [{"name": "t", "columns": ["a"], "rows": []}],
        },
    ],
)
def test_a_broken_item_is_an_error_that_names_it(content: dict[str, Any]) -> None:
    with pytest.raises(ItemError, match="item broken"):
        DbbenchSource({}).make(Item("dbbench", "broken", content))


@pytest.mark.parametrize(
    ("library", "module", "options"),
    [
        ("sqlglot", "agentrl.envs.tasks.dbbench.databases.translate", {"dialect": "mysql"}),
        ("pymysql", "agentrl.envs.tasks.dbbench.databases.server", {"server": "mysql://h/"}),
    ],
)
def test_a_missing_library_is_named_where_it_is_needed_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, library: str, module: str, options: dict[str, str]
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    item = DbbenchSource({"items": 1}).items("train")[0]
    DbbenchSource({}).make(item).start()
    with pytest.raises(ConfigError, match=f"needs {library}"):
        DbbenchSource(options).make(item)


def test_an_item_without_sql_and_answers_has_no_expert() -> None:
    item = Item(
        "dbbench", "x", {"question": "?", "tables": [{"name": "t", "columns": [], "rows": []}]}
    )
    with pytest.raises(ItemError, match="neither SQL nor answers"):
        DbbenchSource({}).expert(item, seed=0)
