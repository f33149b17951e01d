"""A program that uses the `openai` package, unmodified, as it stands in the documentation."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from running import ROOT

from agentrl.envs.contract import Message, Outcome, ToolCall
from agentrl.envs.gateway.task_source import GatewaySource

pytestmark = pytest.mark.skipif(not find_spec("openai"), reason="the package openai is missing")

REWARD = "def reward(item, result):\n    return result.last_line == item['answer']\n"


def test_it_is_an_episode(tmp_path: Path) -> None:
    item = {"id": 1, "country": "Peru", "pages": {"Peru": "Lima, 1535"}, "answer": "Lima"}
    (tmp_path / "items.jsonl").write_text(json.dumps(item))
    (tmp_path / "reward.py").write_text(REWARD)
    source = GatewaySource(
        {
            "program": [sys.executable, str(ROOT / "docs" / "examples" / "agent_openai.py")],
            "items": str(tmp_path / "items.jsonl"),
            "reward": f"{tmp_path / 'reward.py'}:reward",
        }
    )
    environment = source.make(source.items("train")[0])
    try:
        first = environment.start()
        assert first.messages == (Message("user", "What is the capital of Peru?"),)
        assert [tool.name for tool in environment.tools] == ["look_up"]
        seen = environment.call([ToolCall("look_up", {"page": "Peru"})])
        assert seen == Outcome((Message("tool", "Lima, 1535", "look_up"),))
        assert environment.call("It is Lima.") == Outcome((Message("user", "In one word."),))
        assert environment.call("Lima") == Outcome((), done=True, reward=1.0, score=1.0)
    finally:
        environment.close()
