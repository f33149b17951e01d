"""An episode: calls of the tool, their limit, what the agent reads, and the metrics."""

import re
from typing import Any

import pytest

from agentrl.core.errors import ConfigError, ItemError
from agentrl.envs import registry
from agentrl.envs.contract import Environment, Item, Outcome, ToolCall
from agentrl.envs.play import play
from agentrl.envs.tasks.maths.environment import MAX_OUTPUT, format_execution
from agentrl.envs.tasks.maths.problem import Execution

ITEM = Item("maths", "one", {"question": "What is 6 * 7?", "answer": "42", "code": "6*7"})


def started(**options: Any) -> Environment:
    environment = registry.source("maths", options).make(ITEM)
    environment.start()
    return environment


def python(code: str) -> ToolCall:
    return ToolCall("python", {"code": code})


def answer(text: str) -> ToolCall:
    return ToolCall("answer", {"answer": text})


def text(outcome: Outcome) -> str:
    return "\n".join(message.content for message in outcome.messages)


def test_the_tool_computes_and_the_answer_ends_the_episode() -> None:
    environment = started()
    assert text(environment.call([python("x = 6 * 7")])) == "(no output)"
    assert text(environment.call([python("x"), python("1 / 0")])) == (
        "42\nZeroDivisionError: division by zero"
    )
    ended = environment.call([answer("42.0")])
    assert (ended.done, ended.reward, ended.score) == (True, 1.0, 1.0)
    assert ended.metrics == {
        "tool_used": 1.0,
        "tool_calls": 3.0,
        "tool_errors": 1.0,
        "tool_refused": 0.0,
    }


def test_a_wrong_answer_ends_it_too_and_nothing_after_it_runs() -> None:
    ended = started().call([answer("41"), python("1")])
    assert (ended.done, ended.reward) == (True, 0.0)
    assert ended.metrics["tool_used"] == 0.0


def test_after_the_last_call_the_tool_is_refused_and_an_answer_still_counts() -> None:
    environment = started(max_calls=2)
    for _ in range(2):
        environment.call([python("6*7")])
    refused = environment.call([python("6*7"), python("6*7")])
    assert refused.messages[0].content == (
        "Error: python was called 2 times, no more. Call answer with the final answer."
    )
    assert refused.metrics["tool_calls"] == 2.0
    assert refused.metrics["tool_refused"] == 2.0
    assert environment.call([answer("42")]).reward == 1.0


def test_without_the_tool_only_an_answer_is_offered() -> None:
    environment = started(tool=False)
    assert [tool.name for tool in environment.tools] == ["answer"]
    refused = environment.call([python("6*7")])
    assert text(refused) == "Error: there is no tool 'python'; call answer."
    assert refused.metrics["tool_used"] == 0.0
    assert environment.call([answer("42")]).reward == 1.0


def test_the_prompt_says_how_often_the_tool_may_be_called() -> None:
    prompts = {}
    for name, options in {"once": {"max_calls": 1}, "never": {"tool": False}}.items():
        source = registry.source("maths", options)
        prompts[name] = source.make(ITEM).start().messages[0].content
    assert "You may call it once." in prompts["once"]
    assert "python" not in prompts["never"]


def test_ill_formed_calls_and_texts_are_answered() -> None:
    environment = started()
    assert text(environment.call("It is 42.")) == "Call answer with the final answer."
    assert text(environment.call([ToolCall("python", {"x": "1"})])) == (
        "Error: python takes exactly code: a string."
    )
    assert text(environment.call([ToolCall("answer", {"answer": 42})])) == (
        "Error: answer takes exactly answer: a string."
    )
    assert "no tool 'bash'; call python or answer" in text(environment.call([ToolCall("bash", {})]))


def test_what_is_read_has_a_bound_and_keeps_the_error() -> None:
    shown = format_execution(Execution("x\0" * MAX_OUTPUT, "ValueError: no"))
    assert shown.startswith("x\ufffdx")
    assert shown.endswith(f"… ({2 * MAX_OUTPUT} characters)\nValueError: no")
    assert len(shown) < MAX_OUTPUT + 60


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_experts_use_the_tool_in_their_share_of_episodes(share: float) -> None:
    source = registry.source("maths", {"items": 200, "tool_share": share})
    played = [
        play(source, item, source.expert(item, seed=seed))
        for seed, item in enumerate(source.items("train"))
    ]
    used = sum(each.metrics["tool_used"] for each in played) / len(played)
    assert abs(used - share) < 0.1
    assert all(each.reward == 1.0 for each in played), "who answers at once knows the answer"


def test_experts_of_the_ablation_answer_at_once() -> None:
    source = registry.source("maths", {"tool": False})
    outcome = play(source, ITEM, source.expert(ITEM, seed=0))
    assert (outcome.reward, outcome.metrics["tool_used"]) == (1.0, 0.0)


def test_options_and_items_are_checked() -> None:
    for wrong in ({"max_calls": 0}, {"tool_share": 1.5}, {"memory_mb": 1}, {"origin": "gsm9k"}):
        with pytest.raises(ItemError):
            registry.source("maths", wrong)
    with pytest.raises(ConfigError, match="container = true needs an env server"):
        registry.source("maths", {"container": True}).make(ITEM)
    with pytest.raises(ItemError, match="no answer"):
        registry.source("maths", {}).make(Item("maths", "two", {"question": "?", "answer": " "}))


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_every_difficulty_has_the_default_number_of_items(difficulty: str) -> None:
    source = registry.source("maths", {"difficulty": difficulty})
    assert [len(source.items(split)) for split in source.splits] == [2000, 400]


def test_a_third_of_the_easy_items_is_one_small_step() -> None:
    items = registry.source("maths", {"difficulty": "easy", "items": 300}).items("train")
    asked = [re.fullmatch(r"(\d+)([+-])([2-9])\?", item.content["short"]) for item in items]
    steps = [(match, item) for match, item in zip(asked, items, strict=True) if match]
    assert len(steps) == 100
    for match, item in steps:
        a, sign, b = match.groups()
        assert int(item.content["answer"]) == int(a) + (int(b) if sign == "+" else -int(b))
    assert {match[2] for match, _ in steps} == {"+", "-"}
