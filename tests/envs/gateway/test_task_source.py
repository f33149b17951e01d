"""Items of a user's file, and the reward of a user's function."""

import json
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrl.core.errors import ConfigError, EnvironmentFailure, ItemError
from agentrl.envs import registry
from agentrl.envs.gateway.reward import Result, Scored, call_reward, load_reward
from agentrl.envs.gateway.task_source import GatewaySource
from agentrl.envs.tasks.datasets import MissingDataset

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
RESULT = Result("noise\n blue \n\n", "", [], [], 1)


def source(tmp_path: Path, *lines: str, **options: Any) -> GatewaySource:
    (tmp_path / "items.jsonl").write_text("\n".join(lines))
    needed = {"program": ["true"], "reward": "math:sqrt", "items": str(tmp_path / "items.jsonl")}
    return GatewaySource(needed | options)


def test_items_keep_their_fields_and_their_split(tmp_path: Path) -> None:
    found = source(tmp_path, '{"id": 7, "split": "test"}', "", '{"id": "a", "q": [1]}')
    assert found.splits == ("train", "test")
    assert [(each.item_id, each.content) for each in found.items("train")] == [
        ("a", {"id": "a", "q": [1]})
    ]
    assert found.items("test")[0].item_id == "7"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["{"], "line 1: not a JSON object"),
        (["[]"], "line 1: not a JSON object"),
        (['{"id": 1}', '{"a": 1}'], "line 2: the item has no id"),
        (['{"id": true}'], "line 1: the item has no id"),
        (['{"id": 1}', '{"id": "1"}'], "line 2: the id 1 occurs twice"),
        (['{"id": 1, "split": 2}'], "line 1: split is not a string"),
        (
            [json.dumps({"id": 1, "text": "x" * 100_001})],
            "line 1: the item has more than 100000 bytes",
        ),
        ([""], "no items"),
    ],
)
def test_a_file_that_is_not_understood_is_told_by_its_line(
    tmp_path: Path, lines: list[str], why: str
) -> None:
    with pytest.raises(ItemError, match=why):
        source(tmp_path, *lines).items("train")


def test_what_is_not_set_is_told_before_any_episode(tmp_path: Path) -> None:
    with pytest.raises(MissingDataset, match="option items is not set") as caught:
        GatewaySource({}).items("train")
    assert caught.value.hint == "set the option items of the task to a JSONL file"
    with pytest.raises(ItemError, match="option program is not set"):
        source(tmp_path, '{"id": 1}', program=[]).items("train")
    with pytest.raises(ItemError, match="option reward: '' is not the name of a function"):
        source(tmp_path, '{"id": 1}', reward="").items("train")
    with pytest.raises(ItemError, match="did you mean program"):
        registry.source("gateway", {"prorgam": []})
    with pytest.raises(ItemError, match="unknown split tain; did you mean train"):
        source(tmp_path, '{"id": 1}').items("tain")


def test_a_secret_that_is_not_set_is_told_by_its_name(tmp_path: Path) -> None:
    found = source(tmp_path, '{"id": 1}', env={"KEY": "${NOT_SET_ANYWHERE}"})
    item = found.items("train")[0]
    with pytest.raises(ItemError, match="no demonstrator"):
        found.expert(item, seed=0)
    with pytest.raises(ConfigError, match="NOT_SET_ANYWHERE"):
        found.make(item)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothing", "is not the name of a function"),
        ("no.such.module:f", "No module named"),
        ("math:no", "no attribute"),
        ("math:pi", "is not a function"),
        ("/no/such.py:f", "there is no file /no/such.py"),
    ],
)
def test_a_reward_that_is_not_there_is_told_by_name(name: str, why: str) -> None:
    with pytest.raises(ItemError, match=why):
        load_reward(name)


def test_a_reward_may_be_of_a_module_and_a_score_of_its_own() -> None:
    assert load_reward("math:sqrt") is math.sqrt
    assert call_reward(lambda item, _: item["r"], {"r": 2}, RESULT, 5) == Scored(2.0, 2.0)
    assert call_reward(lambda *_: (True, 0.5), {}, RESULT, 5) == Scored(1.0, 0.5)
    assert call_reward(lambda _, r: float(r.last_line == "blue"), {}, RESULT, 5).reward == 1.0


def test_a_reward_may_name_one_for_each_conversation() -> None:
    found = call_reward(lambda *_: (1, 0.5, [1, None]), {}, RESULT, 5, conversations=2)
    assert found == Scored(1.0, 0.5, (1.0, None))


@pytest.mark.parametrize("value", [(1.0, 1.0, [1.0]), (1.0, 1.0, 2.0), (1.0, 1.0, ["a", 1.0])])
def test_rewards_that_do_not_fit_the_conversations_are_a_failure(value: Any) -> None:
    with pytest.raises(EnvironmentFailure, match=r"or \(reward, score, \[2 rewards\]\)"):
        call_reward(lambda *_: value, {}, RESULT, 5, conversations=2)


def test_a_reward_s_file_may_define_classes_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Mark:\n    value: float\n"
        "def of(item, result):\n    return Mark(0.5).value\n"
    )
    assert call_reward(load_reward(f"{path}:of"), {}, RESULT, 5) == Scored(0.5, 0.5)


def broken(_: Mapping[str, Any], __: Result) -> float:
    raise ValueError("oh")


@pytest.mark.parametrize(
    "value", ["1", None, math.nan, 1e300, 10**400, (1.0,), (1.0, "x"), (1, 1, [1])]
)
def test_what_is_no_reward_is_a_failure(value: Any) -> None:
    with pytest.raises(EnvironmentFailure, match="the reward function returned"):
        call_reward(lambda *_: value, {}, RESULT, 5)


def test_a_reward_that_raises_or_hangs_is_a_failure() -> None:
    with pytest.raises(EnvironmentFailure, match="ValueError: oh"):
        call_reward(broken, {}, RESULT, 5)
    released = threading.Event()
    with pytest.raises(EnvironmentFailure, match=r"took more than 0.1 s"):
        call_reward(lambda *_: released.wait(), {}, RESULT, 0.1)
    released.set()


def test_the_example_s_items_can_be_answered() -> None:
    name = f"{EXAMPLES / 'agent_reward.py'}:reward"
    items = str(EXAMPLES / "agent_items.jsonl")
    found, function = (
        GatewaySource({"items": items, "program": ["x"], "reward": name}),
        load_reward(name),
    )
    for split in ("train", "test"):
        for item in found.items(split):
            right = Result(json.dumps(item.content["answers"]), "", [], [], 1)
            assert call_reward(function, item.content, right, 5) == Scored(1.0, 1.0)
