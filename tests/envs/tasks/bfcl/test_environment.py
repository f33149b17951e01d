"""Requests one after the other, and how they are judged."""

from typing import Any

import pytest

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs.contract import Outcome, ToolCall
from agentrl.envs.tasks.bfcl.environment import MAX_STEPS, BfclEnvironment
from agentrl.envs.tasks.bfcl.problem import Described, Problem, Request
from agentrl.envs.tasks.bfcl.world import Call, parsed

A = {"type": "file", "content": "one two"}
FILES = {"root": {"home": {"type": "directory", "contents": {"a": A}}}}
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


def test_a_tool_that_the_item_does_not_offer_is_answered_and_not_done() -> None:
    offered = [Described("ls", "List.", {"type": "object", "properties": {}})]
    problem = Problem(PROBLEM.requests, PROBLEM.classes, PROBLEM.config, offered)
    environment = BfclEnvironment(problem, "full")
    assert [tool.name for tool in environment.tools] == ["ls"]
    outcome = environment.call([READ])
    assert outcome.messages[0].content == '{"error": "there is no function cat"}'


def test_twenty_turns_of_calls_for_one_request_are_the_limit() -> None:
    outcome = played(*[READ] * MAX_STEPS)
    assert (outcome.done, outcome.reward, outcome.status) == (True, 0.0, Status.TASK_LIMIT)
    assert not played(*[READ] * (MAX_STEPS - 1), "ok", "ok", *[COUNT] * (MAX_STEPS - 1)).done


def test_the_compact_style_shows_short_requests_and_bare_answers() -> None:
    environment = BfclEnvironment(PROBLEM, "compact")
    assert [each.content for each in environment.start().messages] == ["bfcl", "read a"]
    assert environment.call([READ]).messages[0].content == "one two"
    assert environment.call([COUNT]).messages[0].content == "2 words"
    assert environment.call([ToolCall("touch", {"file_name": "x"})]).messages[0].content == "ok"


def test_a_closed_episode_is_a_failure_of_the_environment() -> None:
    environment = BfclEnvironment(PROBLEM, "full")
    environment.close()
    with pytest.raises(EnvironmentFailure):
        environment.call("ok")


def test_calls_of_a_truth_are_read_and_never_evaluated() -> None:
    found = parsed("tail('a.txt', lines=-3)")
    assert (found.name, found.arguments) == ("tail", {"file_name": "a.txt", "lines": -3})
    assert parsed("mean([1, (2)])").arguments == {"numbers": [1, 2]}


@pytest.mark.parametrize(
    "text",
    [
        "cat(open('/etc/passwd').read())",
        "cat(file_name=name)",
        "__import__('os').system('true')",
        "cat(*['a'])",
        "cat(**{'file_name': 'a'})",
        "cat('a', file_name='b')",
        "cat('a', 'b')",
        "cat(file_name=b'a')",
        "mean(numbers={1, 2})",
        "mean(numbers=[1e999])",
        "cat('a'); cat('b')",
        "cat",
        "cat('a'",
        "buy(1)",
        "(" * 5000,
    ],
)
def test_what_is_no_call_of_a_known_function_with_literals_is_refused(text: str) -> None:
    with pytest.raises(ItemError, match="call "):
        parsed(text)


@pytest.mark.parametrize(
    ("classes", "config", "match"),
    [
        (["TravelAPI"], {}, "no class TravelAPI; known: GorillaFileSystem"),
        (["TicketAPI"], {"TicketAPI": {"ticket_queue": 3}}, "TicketAPI: Expected `array`"),
    ],
)
def test_an_item_that_cannot_start_is_refused(
    classes: list[str], config: dict[str, Any], match: str
) -> None:
    with pytest.raises(ItemError, match=match):
        BfclEnvironment(Problem([Request("x")], classes, config), "full")
