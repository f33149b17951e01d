"""Requests one after the other, and how they are checked."""

from typing import Any

import pytest

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs.contract import Outcome, ToolCall
from agentrl.envs.tasks.bfcl.environment import BfclEnvironment
from agentrl.envs.tasks.bfcl.package import import_part
from agentrl.envs.tasks.bfcl.problem import Call, Problem, Request

MAX_STEPS = import_part("constants.default_prompts").MAXIMUM_STEP_LIMIT
A = {"type": "file", "content": "one two"}
B = {"type": "file", "content": ""}
FILES = {"root": {"home": {"type": "directory", "contents": {"a": A, "b": B}}}}
READ = ToolCall("cat", {"file_name": "a"})
WRITE = ToolCall("echo", {"content": "2", "file_name": "b"})
COUNT = ToolCall("wc", {"file_name": "a", "mode": "w"})
PROBLEM = Problem(
    [
        Request("Read a.", [Call("cat", {"file_name": "a"})], "read a"),
        Request("Thanks."),
        Request(
            "Count its words into b.",
            [
                Call("wc", {"file_name": "a", "mode": "w"}),
                Call("echo", {"content": "2", "file_name": "b"}),
            ],
        ),
    ],
    ["GorillaFileSystem"],
    {"GorillaFileSystem": FILES},
)


def played(*turns: ToolCall | str, problem: Problem = PROBLEM) -> Outcome:
    environment = BfclEnvironment(problem, "full")
    outcome = Outcome(environment.start().messages)
    for turn in turns:
        assert not outcome.done
        outcome = environment.call(turn if isinstance(turn, str) else [turn])
    return outcome


def test_after_a_text_the_next_request_comes() -> None:
    environment = BfclEnvironment(PROBLEM, "full")
    assert environment.start().messages[1].content == "Read a."
    answer = environment.call([READ]).messages[0]
    assert (answer.role, answer.name, answer.content) == (
        "tool",
        "cat",
        '{"file_content": "one two"}',
    )
    asked = environment.call("It says one two.").messages[0]
    assert (asked.role, asked.content) == ("user", "Thanks.")
    assert environment.call([]).messages[0].content == "Count its words into b."


def test_all_requests_done_is_the_reward() -> None:
    outcome = played(READ, "done", "welcome", COUNT, WRITE, "done")
    assert (outcome.done, outcome.reward, outcome.score) == (True, 1.0, 1.0)
    assert outcome.metrics == {"requests_done": 1.0}


def test_calls_besides_the_needed_ones_in_another_order_do_no_harm() -> None:
    look = ToolCall("ls", {})
    assert played(look, READ, look, "ok", "ok", WRITE, look, COUNT, "ok").reward == 1.0


def test_an_answer_had_for_an_earlier_request_counts_for_a_later_one() -> None:
    assert played(COUNT, READ, "ok", "ok", WRITE, "ok").reward == 1.0


def test_a_state_other_than_the_truths_ends_the_episode_without_reward() -> None:
    outcome = played(
        READ, "ok", "ok", COUNT, ToolCall("echo", {"content": "3", "file_name": "b"}), "ok"
    )
    assert (outcome.done, outcome.reward, outcome.status) == (True, 0.0, Status.COMPLETED)
    assert outcome.metrics == {"requests_done": pytest.approx(2 / 3)}


def test_a_change_that_was_not_asked_for_is_no_success() -> None:
    assert played(READ, ToolCall("touch", {"file_name": "c"}), "ok").done


def test_an_answer_of_the_truth_that_was_never_given_is_no_success() -> None:
    outcome = played(READ, "ok", "ok", WRITE, "ok")
    assert (outcome.done, outcome.reward) == (True, 0.0)


def test_an_answer_that_the_truth_has_twice_is_wanted_twice() -> None:
    twice = Problem(
        [Request("Twice.", [Call("pwd"), Call("pwd")])], PROBLEM.classes, PROBLEM.config
    )
    look = ToolCall("pwd", {})
    assert played(look, "ok", problem=twice).reward == 0.0
    assert played(look, look, "ok", problem=twice).reward == 1.0


def test_a_request_with_a_truth_wants_a_call_even_if_nothing_is_left_to_do() -> None:
    request = Request("Read a.", [Call("cat", {"file_name": "a"})])
    more = Problem([request, Request("Look.", [Call("pwd")])], PROBLEM.classes, PROBLEM.config)
    assert played(READ, ToolCall("pwd", {}), "ok", "ok", problem=more).reward == 0.0


def test_the_working_directory_is_no_part_of_the_state() -> None:
    contents = {"d": {"type": "directory", "contents": {}}}
    config: dict[str, Any] = {"root": {"home": {"type": "directory", "contents": contents}}}
    problem = Problem(
        [Request("Look.", [Call("pwd")])], PROBLEM.classes, {"GorillaFileSystem": config}
    )
    away = ToolCall("cd", {"folder": "d"})
    assert played(ToolCall("pwd", {}), away, "ok", problem=problem).reward == 1.0


def test_an_ill_formed_call_is_answered_and_not_done() -> None:
    environment = BfclEnvironment(PROBLEM, "full")
    environment.start()
    outcome = environment.call([ToolCall("cat", {"file_name": "a"}, "file_name is doubled")])
    assert outcome.messages[0].content == '{"error": "file_name is doubled"}'
    assert environment.call("ok").done


def test_an_unknown_function_is_answered_as_the_benchmark_does() -> None:
    environment = BfclEnvironment(PROBLEM, "full")
    environment.start()
    for name in ("buy", "__init__", "_load_scenario", "add"):
        answer = environment.call([ToolCall(name, {})]).messages[0].content
        assert answer == f"Error during execution: name '{name}' is not defined"


def test_a_function_that_is_held_back_comes_with_its_request() -> None:
    requests = [Request("Sort a."), Request("", [Call("sort", {"file_name": "a"})], "", ["sort"])]
    problem = Problem(requests, PROBLEM.classes, PROBLEM.config)
    environment = BfclEnvironment(problem, "full")
    environment.start()
    assert "sort" not in {tool.name for tool in environment.tools}
    told = environment.call("I cannot sort.").messages[0].content
    assert told.startswith('{"type": "function", "function": {"name": "sort", ')
    assert told.endswith("I have updated some more functions you can choose from. What about now?")
    assert "sort" in {tool.name for tool in environment.tools}
    environment.call([ToolCall("sort", {"file_name": "a"})])
    assert environment.call("done").reward == 1.0


def test_more_steps_for_one_request_than_the_benchmark_allows_end_the_episode() -> None:
    outcome = played(*[READ] * MAX_STEPS, READ)
    assert (outcome.done, outcome.reward, outcome.status) == (True, 0.0, Status.TASK_LIMIT)
    assert not played(*[READ] * MAX_STEPS, "ok", "ok", *[COUNT] * MAX_STEPS).done


def test_the_compact_style_shows_short_requests_and_bare_answers() -> None:
    environment = BfclEnvironment(PROBLEM, "compact")
    assert [each.content for each in environment.start().messages] == ["bfcl", "read a"]
    assert environment.call([READ]).messages[0].content == "one two"
    assert environment.call([COUNT]).messages[0].content == "2 words"
    assert environment.call([ToolCall("touch", {"file_name": "x"})]).messages[0].content == "ok"
    assert environment.call([ToolCall("buy", {})]).messages[0].content.startswith("Error during")


def test_a_closed_episode_is_a_failure_of_the_environment() -> None:
    environment = BfclEnvironment(PROBLEM, "full")
    environment.close()
    with pytest.raises(EnvironmentFailure):
        environment.call("ok")


@pytest.mark.parametrize(
    ("classes", "config", "match"),
    [
        (["BankAPI"], {}, "unknown class BankAPI; known: GorillaFileSystem"),
        (["WebSearchAPI"], {}, "unknown class WebSearchAPI"),
        (["TwitterAPI"], {"TwitterAPI": {"tweets": 3}}, "TwitterAPI: AttributeError"),
    ],
)
def test_an_item_that_cannot_start_is_refused(
    classes: list[str], config: dict[str, Any], match: str
) -> None:
    with pytest.raises(ItemError, match=match):
        BfclEnvironment(Problem([Request("x")], classes, config), "full")
