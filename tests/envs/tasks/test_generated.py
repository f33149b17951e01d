"""Seeded items: the same ones every time, and nothing shared between the splits."""

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from agentrl.core.errors import ItemError
from agentrl.envs import registry
from agentrl.envs.contract import Item
from agentrl.envs.tasks import generated
from agentrl.envs.tasks.options import Generated

CASES = [(task, size) for task in registry.TASKS for size in ("easy", "medium", "hard")]

FIRST_ITEMS = {  # hashes of contents, as every release draws them
    "alfworld": ["easy-75e518a0dbbd5293", "easy-234c5e0ed5725d7d", "easy-02864dcee2469474"],
    "bfcl": ["easy-b6696c62e0102492", "easy-ed39d38b3f276734", "easy-89a65387b9d6ca44"],
    "dbbench": ["easy-38fb64a2e41f6403", "easy-ba14b53d6c24ab9f", "easy-b14f6367760c0fe6"],
    "kg": ["easy-5afd01e03811650e", "easy-2ea7d57105b6cab4", "easy-dd047599f9d69fa5"],
    "maths": ["easy-5a06265f522b8822", "easy-cd3a97fcdfb844ff", "easy-7d3fb0909d4537e1"],
    "os": ["easy-6347be528a08411c", "easy-15a0113614dffda0", "easy-70be7a721cfb31f2"],
    "webshop": ["easy-f142970615339efe", "easy-ef337e1ffe94ea36", "easy-e856997fde337383"],
}


def question_and_answer(item: Item) -> tuple[str, ...]:
    """What an agent could have memorised: the question and what solves it."""
    content = item.content
    if item.task == "dbbench":
        return (content["question"], *content.get("answers", [content["gold_sql"]]))
    errand = content["errand"]
    wanted = (errand["thing"], errand["target"])
    kinds = [(name.split()[0], place) for name, place in content["things"].items()]
    hidden = [pair for pair in kinds if pair[0] in wanted]
    places = [place["name"] for place in content["places"]]
    return (str(errand), *places, *map(str, sorted(hidden)))


@pytest.mark.parametrize(
    ("task", "difficulty"), [case for case in CASES if case[0] in ("alfworld", "dbbench")]
)
def test_the_splits_share_no_item_and_no_question_with_its_answer(
    task: str, difficulty: str
) -> None:
    options = {"difficulty": difficulty, "items": 300, "test_items": 100}
    train = registry.source(task, {**options, "seed": 1}).items("train")
    test = registry.source(task, {**options, "seed": 2}).items("test")
    assert not {i.item_id for i in train} & {i.item_id for i in test}
    assert not set(map(question_and_answer, train)) & set(map(question_and_answer, test))
    assert len({item.item_id for item in train}) == 300


@pytest.mark.parametrize(("task", "difficulty"), CASES)
def test_items_are_a_pure_function_of_seed_difficulty_and_split(task: str, difficulty: str) -> None:
    options = {"difficulty": difficulty, "items": 8, "seed": 7}
    first = registry.source(task, options).items("train")
    assert first == registry.source(task, {**options, "style": "compact"}).items("train")
    assert first == registry.source(task, {**options, "items": 16}).items("train")[:8]
    assert first != registry.source(task, {**options, "seed": 8}).items("train")


@pytest.mark.parametrize("task", sorted(registry.TASKS))
def test_a_seed_draws_the_same_items_in_every_release(task: str) -> None:
    items = registry.source(task, {"items": 3, "test_items": 1}).items("train")
    assert [item.item_id for item in items] == FIRST_ITEMS[task]


def test_a_space_of_items_that_is_too_small_is_an_error_and_no_endless_search() -> None:
    def draw(random: Random, number: int) -> tuple[Mapping[str, Any], str]:
        return {"only": 1}, "key"

    with pytest.raises(ItemError, match=r"has . items instead of 5") as caught:
        generated.generate("tiny", "train", Generated(items=5), draw)
    assert "lower the options items and test_items" in caught.value.hint


def test_about_a_fifth_of_all_questions_belong_to_the_test_split() -> None:
    share = sum(generated.split_of(str(number)) == "test" for number in range(5000)) / 5000
    assert 0.17 < share < 0.23
