"""Our server answers as the original's task worker did in a recorded conversation."""

import json
import threading
from pathlib import Path
from typing import Any

import counting_task
import pytest
from env_server_client import PLACES, run_conversation

from agentrl.core.config.config import Config
from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.envs import registry
from agentrl.envs.server.server import EnvServer
from agentrl.envs.server.session import Timings

RECORDED = Path(__file__).parent / "recorded" / "agentrl-worker-0.4.0.json"
SIX = {"messages", "tools", "status", "finish", "reward", "metric"}
OURS = {"score", "error"}


def test_every_answer_is_the_one_the_original_worker_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.TASKS, "counting", "counting_task:CountingSource")
    begun, over = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert over.wait(60)

    monkeypatch.setattr(counting_task.Counting, "at_seven", staticmethod(wait))
    envs = Envs(concurrency=PLACES)
    config = Config(tasks={"counting": Task(max_turns=30)}, envs=envs)
    server = EnvServer(config.tasks, config.envs, Timings(queue_s=0.1))
    theirs = json.loads(RECORDED.read_text())
    try:
        api = f"{server.url}/counting/api"
        ours = run_conversation(api, theirs, begun=lambda: begun.wait(60), over=over.set)
    finally:
        server.close()
    assert len(ours) == len(theirs) > 40
    for mine, their in zip(ours, theirs, strict=True):
        assert mine["status"] == their.get("ours", their["status"]), their
        if mine["status"] == their["status"]:
            same(mine, their)


def same(mine: dict[str, Any], their: dict[str, Any]) -> None:
    assert mine["session"] == their["session"]
    if their["verb"] == "get_indices":
        assert mine["answer"] == [str(index) for index in their["answer"]]
    elif their["status"] != 200:
        assert isinstance(mine["answer"]["detail"], str)
        assert their["answer"]["detail"] != "No such session" or mine["answer"] == their["answer"]
    elif their["verb"] == "start_sample":
        same_answer(mine["answer"], their["answer"])
    elif their["verb"] == "interact":
        assert mine["answer"].keys() == their["answer"].keys() == {"session_id", "env_out"}
        assert mine["answer"]["session_id"] == their["answer"]["session_id"]
        same_answer(mine["answer"]["env_out"], their["answer"]["env_out"])
    else:
        assert mine["answer"] == their["answer"]


def same_answer(mine: dict[str, Any], their: dict[str, Any]) -> None:
    """The six keys and their values; the tools of an episode that broke are not told by ours."""
    assert their.keys() == SIX
    assert mine.keys() - OURS == SIX
    told = SIX if their["status"] != "task error" else SIX - {"tools"}
    assert {key: mine[key] for key in told} == {key: their[key] for key in told}
