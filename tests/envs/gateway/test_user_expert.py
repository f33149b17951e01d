"""The user's expert: the calls of a demonstration, and what is told of a function that fails."""

import json
from pathlib import Path

import pytest

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.gateway.task_source import GatewaySource

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
EXPERTS = """\
def says(item, messages, fault):
    return f"{item['id']} {messages[-1]['role']} {messages[-1]['content']}"

def calls(item, messages, fault):
    return {"name": "look", "arguments": {"thing": fault.choice("ab") if fault else "mug"}}

def fails(item, messages, fault):
    return {}[item["id"]]

def odd(item, messages, fault):
    return {"name": "look"}
"""
ASKED = [Message("system", "s"), Message("user", "where?")]


def source(tmp_path: Path, expert: str) -> GatewaySource:
    (tmp_path / "expert.py").write_text(EXPERTS)
    (tmp_path / "items.jsonl").write_text('{"id": "one"}')
    options = {"program": ["true"], "reward": "math:sqrt", "items": str(tmp_path / "items.jsonl")}
    return GatewaySource(options | {"expert": expert and f"{tmp_path / 'expert.py'}:{expert}"})


def act(tmp_path: Path, expert: str, noise: float = 0.0, seed: int = 0) -> ToolCall | str:
    found = source(tmp_path, expert)
    return found.expert(found.items("train")[0], seed=seed, noise=noise).act(ASKED)


def test_an_expert_is_told_the_item_and_the_conversation(tmp_path: Path) -> None:
    assert act(tmp_path, "says") == "one user where?"
    assert act(tmp_path, "calls") == ToolCall("look", {"thing": "mug"})


def test_faults_are_drawn_with_the_seed(tmp_path: Path) -> None:
    first = [act(tmp_path, "calls", noise=1.0, seed=seed) for seed in range(20)]
    again = [act(tmp_path, "calls", noise=1.0, seed=seed) for seed in range(20)]
    assert first == again
    faults = (ToolCall("look", {"thing": "a"}), ToolCall("look", {"thing": "b"}))
    assert all(fault in first for fault in faults)
    some = [act(tmp_path, "calls", noise=0.5, seed=seed) for seed in range(20)]
    assert 0 < some.count(ToolCall("look", {"thing": "mug"})) < 20


@pytest.mark.parametrize(
    ("expert", "why"),
    [
        ("", "item one: the task gateway has no demonstrator"),
        ("missing", "option expert: .*has no attribute 'missing'"),
        ("fails", "option expert: it failed: KeyError: 'one'"),
        ("odd", "option expert: it returned .*missing required field `arguments`"),
    ],
)
def test_an_expert_that_is_wrong_is_told(tmp_path: Path, expert: str, why: str) -> None:
    with pytest.raises(ItemError, match=why):
        act(tmp_path, expert)


def test_the_example_s_expert_answers_the_example_s_items() -> None:
    found = GatewaySource(
        {
            "program": ["true"],
            "items": str(EXAMPLES / "agent_items.jsonl"),
            "reward": f"{EXAMPLES / 'agent_reward.py'}:reward",
            "expert": f"{EXAMPLES / 'agent_expert.py'}:expert",
        }
    )
    for split in ("train", "test"):
        for item in found.items(split):
            expert = found.expert(item, seed=0)
            asked = expert.act([Message("user", "New task:")])
            assert isinstance(asked, ToolCall)
            assert asked.arguments["query"].startswith("select ")
            rows = [(answer,) for answer in item.content["answers"]]
            answered = expert.act([Message("user", f"Observation:\n{rows}")])
            assert answered == ToolCall(
                "final_answer", {"answer": ", ".join(item.content["answers"])}
            ), json.dumps(item.content)
