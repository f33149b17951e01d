"""Generated items: what a template knows, and an expert that errs."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.oslinux.expert import OsExpert, make_mistake, miscopy
from agentrl.envs.tasks.oslinux.problem import Match, Problem, Script, Step
from agentrl.envs.tasks.oslinux.task_source import OsSource
from agentrl.envs.tasks.oslinux.templates.questions import (
    busiest_address,
    highest_score,
    total_of_name,
)


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_items_are_the_same_in_every_process_and_questions_of_splits_differ(
    difficulty: str,
) -> None:
    options = {"difficulty": difficulty, "items": 120, "test_items": 60}
    one, two = OsSource(options), OsSource(options)
    assert one.items("train") == two.items("train")
    keys = [
        {
            (item.content["description"], str(item.content.get("match") or item.content["check"]))
            for item in one.items(split)
        }
        for split in ("train", "test")
    ]
    assert not keys[0] & keys[1]


def test_an_answer_is_known_without_the_command() -> None:
    for seed in range(30):
        drawn = highest_score(Random(seed))
        rows = [line.split(",") for text in drawn.files.values() for line in text.splitlines()]
        assert drawn.answer == max(rows, key=lambda row: int(row[1]))[0]
        drawn = total_of_name(Random(seed))
        people, orders = (text.splitlines() for text in drawn.files.values())
        who = drawn.short.split()[2]
        number = dict(line.split() for line in people)[who]
        amounts = [line.split() for line in orders]
        assert drawn.answer == str(sum(int(n) for each, n in amounts if each == number))


def test_a_question_with_two_answers_makes_no_item() -> None:
    drawn = [busiest_address(Random(seed)) for seed in range(200)]
    assert any(not each.files for each in drawn)
    for each in drawn:
        for text in each.files.values():
            status = each.short.split()[3]
            named = [line.split()[0] for line in text.splitlines() if line.endswith(status)]
            counts = sorted((named.count(address) for address in set(named)), reverse=True)
            assert counts[0] > counts[1]
            assert named.count(each.answer) == counts[0]


def reply(text: str) -> list[Message]:
    return [Message("tool", f"The output of the OS:\n\n{text}", "bash_action")]


def test_the_expert_of_a_benchmarks_item_runs_its_example_or_gives_its_answer() -> None:
    check = [Step(example=True), Step(matcher="string-match")]
    for script, command in (
        (Script("ls | wc -l"), "ls | wc -l"),
        (Script("print(7)", "python"), "python3 - <<'END_OF_EXAMPLE'\nprint(7)\nEND_OF_EXAMPLE"),
    ):
        expert = OsExpert(Problem("?", check=check, example=script), seed=0, noise=0.0)
        assert expert.act([]) == ToolCall("bash_action", {"script": command})
        assert expert.act(reply("7\n")) == ToolCall("answer_action", {"answer": "7"})
        assert not expert.answers_unseen
    known = OsExpert(Problem("?", match=Match(answer="1")), seed=0, noise=0.0)
    assert known.act([]) == ToolCall("answer_action", {"answer": "1"})
    assert known.answers_unseen


def test_an_expert_runs_the_command_and_answers_what_it_read() -> None:
    question = Problem("?", commands=["wc -l f"])
    expert = OsExpert(question, seed=0, noise=0.0)
    assert expert.act([]) == ToolCall("bash_action", {"script": "wc -l f"})
    assert expert.act(reply("7\n")) == ToolCall("answer_action", {"answer": "7"})
    change = Problem("!", commands=["rm f"], answer="done")
    expert = OsExpert(change, seed=0, noise=0.0)
    expert.act([])
    assert expert.act(reply("")) == ToolCall("finish_action", {"thought": "done"})


@settings(max_examples=30)
@given(st.text(max_size=40), st.integers())
def test_a_faulty_command_is_another_and_a_miscopied_answer_too(text: str, seed: int) -> None:
    random = Random(seed)
    assert isinstance(make_mistake(text, random), str)
    assert (
        make_mistake("find /root -name '*.txt' | wc -l", random)
        != "find /root -name '*.txt' | wc -l"
    )
    if text:
        assert miscopy(text, random) != text
