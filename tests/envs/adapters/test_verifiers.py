"""A package of verifiers, played by verifiers itself: its tasks, rollout, reward and metrics."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from adapter_pages import task_of_page

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.envs import registry
from agentrl.envs.contract import Environment, Message, ToolCall

pytestmark = pytest.mark.slow  # each episode starts a Python that imports verifiers

PACKAGE = '''
import json
import shutil
import httpx
import verifiers.v1 as vf

LOOK = {"type": "function", "function": {"name": "look", "description": "Look at a thing.",
        "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}}}}

class ColourData(vf.TaskData):
    thing: str
    colour: str

class ColourTask(vf.Task[ColourData]):
    @vf.reward(weight=2.0)
    async def named(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.colour)

    @vf.metric
    async def replies(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)

    @vf.metric
    async def finds_uv(self, trace: vf.Trace) -> float:
        return float(shutil.which("uv") is not None)

class ColourConfig(vf.TasksetConfig):
    colours: list[str] = ["red", "blue", "green"]

class Colours(vf.Taskset[ColourTask, ColourConfig]):
    def load(self):
        print("twelve colours")
        for number in range(12):
            colour = self.config.colours[number % len(self.config.colours)]
            data = ColourData(prompt=f"Which colour has thing {number}?",
                              thing=f"thing {number}", colour=colour)
            yield ColourTask(data, self.config.task)

class Looking(vf.Harness[vf.HarnessConfig]):
    """Asks until there is a turn without a call, within this process."""
    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, _trace, _runtime, endpoint, secret, _urls, data, **_rest):
        messages = [{"role": "user", "content": data.prompt}]
        headers = {"authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as http:
            while True:
                body = {"model": ctx.model, "messages": messages, "tools": [LOOK]}
                answer = await http.post(f"{endpoint}/chat/completions", json=body)
                answer.raise_for_status()
                said = answer.json()["choices"][0]["message"]
                messages.append(said)
                if not said.get("tool_calls"):
                    break
                for call in said["tool_calls"]:
                    thing = json.loads(call["function"]["arguments"])["thing"]
                    if thing == "abyss":
                        raise RuntimeError("the abyss looks back")
                    colour = data.colour if thing == data.thing else "grey"
                    messages.append(
                        {"role": "tool", "tool_call_id": call["id"], "content": colour})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

__all__ = ["Colours", "Looking"]
'''


@pytest.fixture
def options(tmp_path: Path, verifiers_python: Path) -> dict[str, Any]:
    (tmp_path / "colours.py").write_text(PACKAGE)
    env = {"PYTHONPATH": str(tmp_path)}
    return {"python": str(verifiers_python), "env": env, "own_user": False}


def begun(options: Mapping[str, Any]) -> tuple[Environment, Message]:
    task = registry.source("colours", options, "verifiers:colours")
    environment = task.make(task.items("train")[0])
    (first,) = environment.start().messages
    return environment, first


def test_the_rollout_of_a_package_gives_its_reward_and_metrics(options: dict[str, Any]) -> None:
    environment, first = begun(options | {"solved": 2.0})
    try:
        assert (first.role, first.content[:23]) == ("user", "Which colour has thing ")
        assert [tool.name for tool in environment.tools] == ["look"]
        thing = first.content.removeprefix("Which colour has ").removesuffix("?")
        (answer,) = environment.call([ToolCall("look", {"thing": thing})]).messages
        assert (answer.role, answer.name) == ("tool", "look")
        assert answer.content in ("red", "blue", "green")
        outcome = environment.call(answer.content)
    finally:
        environment.close()
    assert (outcome.done, outcome.reward, outcome.score) == (True, 2.0, 1.0)
    assert outcome.metrics == {"named": 1.0, "replies": 2.0, "finds_uv": 1.0}


def test_the_configuration_of_the_page_plays_its_episodes(options: dict[str, Any]) -> None:
    page = task_of_page("verifiers")
    assert page.options["python"] == ".venv-verifiers/bin/python"
    task = registry.source("colours", {**page.options, **options}, page.source)
    environment = task.make(task.items("train")[0])
    try:
        (first,) = environment.start().messages
        thing = first.content.removeprefix("Which colour has ").removesuffix("?")
        (answer,) = environment.call([ToolCall("look", {"thing": thing})]).messages
        assert environment.call(answer.content).reward == 2.0
    finally:
        environment.close()


def test_its_turn_limit_ends_an_episode_with_its_reward(options: dict[str, Any]) -> None:
    environment, _ = begun(options | {"max_turns": 1})
    try:
        outcome = environment.call([ToolCall("look", {"thing": "wall"})])
    finally:
        environment.close()
    assert (outcome.done, outcome.reward, outcome.metrics["replies"]) == (True, 0.0, 1.0)


def test_an_episode_that_verifiers_calls_failed_is_a_failure(options: dict[str, Any]) -> None:
    environment, _ = begun(options)
    try:
        with pytest.raises(EnvironmentFailure, match="the abyss looks back"):
            environment.call([ToolCall("look", {"thing": "abyss"})])
    finally:
        environment.close()


def test_the_hash_of_a_task_decides_its_split(options: dict[str, Any]) -> None:
    config = {"taskset": {"colours": ["red", "white"]}}
    task = registry.source("colours", options | {"config": config}, "verifiers:colours")
    train, test = ({item.item_id for item in task.items(split)} for split in task.splits)
    assert len(train) + len(test) == 12
    assert not train & test
    few = registry.source("colours", options | {"items": 5}, "verifiers:colours")
    assert sum(len(few.items(split)) for split in few.splits) == 5


def test_a_package_that_is_not_there_is_one_error(options: dict[str, Any]) -> None:
    task = registry.source("colours", options, "verifiers:colors")
    with pytest.raises(ItemError, match=r"verifiers:colors: .*'colors' not found"):
        task.items("train")
    without = registry.source("colours", {"python": sys.executable}, "verifiers:colours")
    with pytest.raises(ItemError, match="No module named 'verifiers'"):
        without.items("train")
