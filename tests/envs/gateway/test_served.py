"""Agent programs behind an env server, where they outlive the worker of their episode."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from agent_programs import LOOK, Play

from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.envs.contract import Environment, Message, is_attachable
from agentrl.envs.server.client import RemoteSource
from agentrl.envs.server.server import EnvServer

PROGRAM = """
messages = [{"role": "system", "content": "act"}, user(item["id"])]
tools = [tool("look", "thing")]
seen = []
message = said(ask(messages, tools=tools))
while message.get("tool_calls"):
    messages.append(message)
    for call in message["tool_calls"]:
        seen.append(json.loads(call["function"]["arguments"])["thing"])
        told = f"look {len(seen)}: {seen[-1]} is blue"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})
    message = said(ask(messages, tools=tools))
print(message["content"])
"""
FIRST = (Message("system", "act"), Message("user", "one"))


@pytest.fixture
def source(play: Play, tmp_path: Path) -> Iterator[RemoteSource]:
    play(PROGRAM)
    options = {
        "program": [sys.executable, str(tmp_path / "program.py")],
        "items": str(tmp_path / "items.jsonl"),
        "reward": f"{tmp_path / 'reward.py'}:said",
    }
    with closing(EnvServer({"gateway": Task(options=options)})) as server:
        yield RemoteSource(Envs(url=server.url), "gateway", options)


def _attached(source: RemoteSource, fence: int) -> tuple[Environment, int]:
    """The episode's environment for the attempt `fence`; turns that the program has had."""
    environment = source.make(source.items("train")[0])
    assert is_attachable(environment)
    return environment, environment.attach("episode", fence)


def test_a_program_may_run_behind_an_env_server(source: RemoteSource) -> None:
    environment = source.make(source.items("train")[0])
    with closing(environment):
        assert environment.start().messages == FIRST
        assert [tool.name for tool in environment.tools] == ["look"]
        assert environment.call([LOOK]).messages[0].content == "look 1: mug is blue"
        outcome = environment.call("blue")
        assert (outcome.done, outcome.reward, outcome.score) == (True, 1.0, 0.5)


def test_a_program_goes_on_with_the_next_worker_at_its_turn(source: RemoteSource) -> None:
    """It is not started again, and what it did is not done twice."""
    former, applied = _attached(source, 1)
    assert (applied, former.start().messages) == (0, FIRST)
    answer = former.call([LOOK])
    assert is_attachable(former)
    former.leave()

    environment, applied = _attached(source, 2)
    with closing(environment):
        assert (applied, environment.start().messages) == (1, FIRST)
        assert environment.call([LOOK]) == answer
        assert environment.call([LOOK]).messages[0].content == "look 2: mug is blue"
        assert environment.call("blue").reward == 1.0
