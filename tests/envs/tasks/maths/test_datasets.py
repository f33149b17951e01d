"""Items of GSM8K's form, and of reasoning-gym."""

import json
from pathlib import Path

import pytest

from agentrl.core.errors import ItemError
from agentrl.envs import registry
from agentrl.envs.contract import TaskSource
from agentrl.envs.play import play
from agentrl.envs.tasks.maths.reasoning import DATASETS
from agentrl.envs.tasks.maths.scoring import answers_match

LINES = [
    {
        "question": "Kim sold 48 cups, and half as many hats. How many things is that?",
        "answer": "Kim sold 48/2 = <<48/2=24>>24 hats.\nThat is 48+24 = <<48+24=72>>72.\n#### 72",
    },
    {"question": "A car costs $1,200 and a bike half of it.", "answer": "no steps\n#### 1,800"},
    {"question": "Something rounded?", "answer": "<<10/3=3>>\n#### 3"},
]


def source(folder: Path, *lines: object) -> TaskSource:
    for split in ("train", "test"):
        path = folder / "maths" / "gsm8k" / f"{split}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    return registry.source("maths", {"origin": "gsm8k", "data": str(folder)})


def test_a_line_is_an_item_with_its_answer_and_its_last_computation(tmp_path: Path) -> None:
    items = source(tmp_path, *LINES).items("test")
    assert [item.item_id for item in items] == ["test-1", "test-3", "test-5"]
    assert items[0].content == {
        "question": LINES[0]["question"],
        "answer": "72",
        "code": "48+24",
    }
    assert items[1].content == {"question": LINES[1]["question"], "answer": "1,800"}
    assert "code" not in items[2].content, "its computation does not give the answer"


def test_experts_compute_where_they_can(tmp_path: Path) -> None:
    task = source(tmp_path, *LINES)
    played = [play(task, item, task.expert(item, seed=0)) for item in task.items("train")]
    assert [each.reward for each in played] == [1.0, 1.0, 1.0]
    assert [each.metrics["tool_used"] for each in played] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "line",
    [{"question": "?"}, {"question": "?", "answer": "42"}, {"question": "?", "answer": "####"}],
)
def test_a_line_of_another_form_is_told_with_its_number(tmp_path: Path, line: object) -> None:
    with pytest.raises(ItemError, match=r"train.jsonl: line 3: "):
        source(tmp_path, LINES[0], line).items("train")


@pytest.mark.parametrize("difficulty", sorted(DATASETS))
def test_problems_of_reasoning_gym_have_answers_that_can_be_compared(difficulty: str) -> None:
    pytest.importorskip("reasoning_gym", reason="needs agentrl-system[reasoning-gym]")
    options = {"origin": "reasoning-gym", "difficulty": difficulty, "items": 20, "test_items": 5}
    task = registry.source("maths", options)
    for item in task.items("train"):
        right = item.content["answer"]
        assert answers_match(right, right)
        assert not answers_match(f"{right}1", right)
        assert play(task, item, task.expert(item, seed=0)).reward == 1.0
    assert task.items("train") == registry.source("maths", options).items("train")
    used = {item.content.get("code", "") != "" for item in task.items("train")}
    assert (True in used) == (difficulty != "hard"), "sums come with their expression"
