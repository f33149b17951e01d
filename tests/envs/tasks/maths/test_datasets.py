"""Items of GSM8K's form, and of reasoning-gym."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.core.errors import ItemError
from agentrl.envs import registry
from agentrl.envs.contract import TaskSource
from agentrl.envs.play import play
from agentrl.envs.tasks.maths.reasoning import DATASETS, make_item
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


def entry(question: str, answer: str, **metadata: Any) -> dict[str, Any]:
    """A problem as reasoning-gym draws it."""
    return {"question": question, "answer": answer, "metadata": metadata}


def test_no_question_of_reasoning_gym_holds_its_answer_in_another_form() -> None:
    assert answers_match("552/3144", "23/131")
    assert not any("fraction_simplification" in names for names in DATASETS.values())


def test_a_rounded_probability_is_replaced_by_its_fraction() -> None:
    rational = {"numerator": 2, "denominator": 65536}
    drawn = make_item(entry("How probable are 15 heads?", "3.051757812e-05", rational=rational))
    assert drawn is not None
    assert drawn[0]["answer"] == "1/32768"
    assert answers_match("0.000030517578125", drawn[0]["answer"])
    assert answers_match("2/65536", drawn[0]["answer"])


def test_an_answer_that_its_expression_does_not_have_makes_no_item() -> None:
    drawn = make_item(entry("Calculate 6 / 2.", "3", expression="6 / 2"))
    assert drawn == (
        {"question": "Calculate 6 / 2.", "answer": "3", "code": "6 / 2"},
        "Calculate 6 / 2.\n3",
    )
    assert make_item(entry("Calculate 7 / 2.", "3", expression="7 / 2")) is None


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
