"""What a model learns from: episodes of experts, and imported ones."""

import json
from pathlib import Path

import pytest
from agentbench_records import QUESTION
from running import ROOT

from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ItemError
from agentrl.envs.contract import Message, Tool
from agentrl.envs.play import play
from agentrl.envs.registry import source
from agentrl.ops.warmstart import demonstrations
from agentrl.ops.warmstart.demonstrations import (
    UNSEEN,
    UNSOLVED,
    Demonstrator,
    Transcript,
    select_fit,
)
from agentrl.workers.conversation.template import ChatTemplate


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"messages": []}',
        '{"messages": [{"role": "user", "content": "a"}]}',
        '{"messages": [{"role": "assistant", "content": "a"}]}',
    ],
)
def test_a_broken_line_of_imported_episodes_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text("\n" + line)
    with pytest.raises(ItemError, match=r"episodes\.jsonl: line 2"):
        demonstrations.import_transcripts(path, "plain")


def test_a_file_without_an_episode_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text("\n")
    with pytest.raises(ItemError, match=r"episodes\.jsonl: no episode to learn from"):
        demonstrations.import_transcripts(path, "plain")


def test_imported_tools_and_calls_are_read(tmp_path: Path) -> None:
    tool = Tool("look", "Look.", {"type": "object", "properties": {}})
    look = {"name": "look", "arguments": "{}"}
    line = {
        "tools": [tool.schema()],
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {
                "role": "assistant",
                "content": "I look. ",
                "tool_calls": [{"type": "function", "function": look}],
            },
            {"role": "tool", "content": "mug", "name": "look", "tool_call_id": "1"},
        ],
    }
    path = tmp_path / "episodes.jsonl"
    path.write_text(json.dumps(line))
    [transcript] = demonstrations.import_transcripts(path, "plain")
    assert transcript.tools == (tool,)
    assert [message.role for message in transcript.first] == ["system", "user"]
    assert transcript.turns[0].text == "I look. look{}"
    assert transcript.turns[0].answer[0].content == "mug"


def test_null_stands_for_what_a_message_lacks(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "u", "name": None, "tool_calls": None}
    said = [asked, asked | {"role": "assistant", "content": "a"}]
    tool = {"function": {"name": "look", "description": None, "parameters": None}}
    path = tmp_path / "episodes.jsonl"
    for tools, expected in ((None, ()), ([tool], (Tool("look", "", {}),))):
        path.write_text(json.dumps({"tools": tools, "messages": said}))
        [transcript] = demonstrations.import_transcripts(path, "plain")
        assert (transcript.tools, transcript.first) == (expected, (Message("user", "u"),))
        assert [turn.text for turn in transcript.turns] == ["a"]


def test_a_few_demonstrations_show_items_of_the_whole_split() -> None:
    task = Task(options={"items": 100, "test_items": 1}, split="train")
    known = source("alfworld", task.options)
    first = {known.make(item).start().messages[1].content for item in known.items("train")[:20]}
    shown = Demonstrator(known, task, "plain", noise=0.0).episodes(20, seed=0)
    assert len(first & {transcript.first[1].content for transcript in shown}) < 10


def unfit(noise: float = 0.0, careless: float = 0.0) -> list[bool]:
    """Which of ten errands cannot be cloned if there are five turns for each."""
    task = Task(options={"items": 20, "test_items": 1, "careless": careless}, max_turns=5)
    known = source("alfworld", task.options)
    shown = Demonstrator(known, task, "plain", noise).episodes(10, seed=0)
    return [bool(each.unfit) for each in shown]


def test_an_expert_that_plays_without_faults_is_cloned_only_where_it_succeeds() -> None:
    assert set(unfit()) == {False, True}
    assert not any(unfit(noise=1e-9))
    assert not any(unfit(careless=1e-9))


ORDER = QUESTION | {"type": ["INSERT"], "label": ["INSERT INTO `Staff` VALUES ('Rome')"]}


def test_an_expert_that_answers_what_it_has_not_seen_is_not_cloned(tmp_path: Path) -> None:
    (tmp_path / "dbbench").mkdir()
    lines = "\n".join(map(json.dumps, [QUESTION, ORDER]))
    (tmp_path / "dbbench" / "agentbench_dev.jsonl").write_text(lines)
    given = {"origin": "agentbench", "data": str(tmp_path), "dialect": "sqlite"}
    known = source("dbbench", given)
    query, _ = known.items("dev")
    assert play(known, query, known.expert(query, seed=0)).reward == 1.0
    for noise in (0.0, 0.5):
        demonstrator = Demonstrator(known, Task(split="dev", options=given), "plain", noise)
        shown = sorted(demonstrator.episodes(2, seed=0), key=lambda each: each.unfit)
        assert [(each.unfit, bool(each.turns)) for each in shown] == [("", True), (UNSEEN, False)]


def test_what_is_left_out_is_counted_and_nothing_left_is_an_error() -> None:
    fit, failed = Transcript((), (), ()), Transcript((), (), (), UNSOLVED)
    said: list[str] = []
    assert select_fit("kg", [fit, failed, fit, failed], said.append) == [fit, fit]
    assert select_fit("kg", [fit], said.append) == [fit]
    assert said == ["kg: 2 of 4 expert episodes are left out: they do not solve their items"]
    with pytest.raises(ItemError, match="kg: 1 of 1 expert episodes are left out") as caught:
        select_fit("kg", [failed], said.append)
    assert "raise tasks.kg.max_turns" in caught.value.hint


@pytest.mark.parametrize("name", ["dbbench", "alfworld"])
def test_a_demonstration_learns_the_experts_words_and_each_end(name: str) -> None:
    template = ChatTemplate.load(ROOT / "models" / "tiny")
    task = Task(options={"style": "compact", "items": 20, "test_items": 4}, max_turns=2)
    trainer = Demonstrator(source(name, task.options), task, "plain", noise=0.2)
    for transcript in trainer.episodes(10, seed=0):
        (lesson,) = demonstrations.encode(transcript, template, "plain")
        learned = lesson.token_ids[lesson.mask == 1].tolist()
        said = [[*template.encode(turn.text), template.end_id] for turn in transcript.turns]
        assert learned == [token for turn in said for token in turn]
        assert len(transcript.turns) <= 2
