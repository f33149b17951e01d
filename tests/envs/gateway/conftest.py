"""Episodes of agent programs, in a folder of the test's own."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_programs import PRELUDE, REWARD, Play

from agentrl.envs.contract import Environment
from agentrl.envs.gateway.task_source import GatewaySource


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """Makes an episode of a program; closed at the end."""
    made: list[Environment] = []
    (tmp_path / "reward.py").write_text(REWARD)

    def episode(program: str, reward: str = "said", **options: Any) -> Environment:
        (tmp_path / "program.py").write_text(PRELUDE + program)
        item = {"id": "one", "answer": "blue", "into": str(tmp_path / "told.json")}
        (tmp_path / "items.jsonl").write_text(json.dumps(item) + "\n")
        given = {
            "program": [sys.executable, str(tmp_path / "program.py")],
            "items": str(tmp_path / "items.jsonl"),
            "reward": f"{tmp_path / 'reward.py'}:{reward}",
            "timeout_s": 120.0,  # an import takes long on a busy machine
        }
        source = GatewaySource(given | options)
        made.append(source.make(source.items("train")[0]))
        return made[-1]

    yield episode
    for environment in made:
        environment.close()
