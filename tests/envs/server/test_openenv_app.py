"""Our tasks as an OpenEnv server: the clients of its own package play them, and our adapter."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3

from agentrl.core.config.sections import Envs, Task
from agentrl.envs import registry
from agentrl.envs.contract import ToolCall
from agentrl.envs.server.server import EnvServer

pytest.importorskip("websockets", reason="needs pip install 'agentrl-system[openenv]'")

JUDGE = """
import asyncio, json, sys
from openenv.core import CallToolAction, GenericEnvClient, MCPToolClient

HEADERS = {"authorization": "Bearer sesame"}

def add(number):
    return {"type": "call_tool", "tool_name": "add", "arguments": {"number": number}}

async def generic(url):
    async with GenericEnvClient(base_url=url, headers=HEADERS) as env:
        first = await env.reset(split="all", index=4)
        one = await env.step(add(2))
        state = await env.state()
        last = await env.step(add(3))
        try:
            await env.step(add(1))
        except Exception as error:
            over = str(error)
        again = await env.reset(index=12)
        try:
            await env.step(add(13))
        except Exception as error:
            broken = str(error)
        return {
            "first": first.observation, "one": [one.observation["result"]["data"], one.reward],
            "state": state, "last": [last.reward, last.done, last.observation["metadata"]],
            "over": over, "again": again.observation["messages"][1]["content"], "broken": broken,
        }

async def tools(url):
    async with MCPToolClient(base_url=url, headers=HEADERS) as env:
        listed = [tool.name for tool in await env.list_tools()]
        await env.reset(index=1)
        called = await env.call_tool("add", number=1)
        said = await env.call_tool("say", text="hello")
        end = await env.step(CallToolAction(tool_name="add", arguments={"number": 1}))
        return {"listed": listed, "called": called, "said": said, "end": [end.reward, end.done]}

async def full(url):
    async with GenericEnvClient(base_url=url, headers=HEADERS) as one:
        await one.reset()
        async with GenericEnvClient(base_url=url, headers=HEADERS) as other:
            try:
                await other.reset()
            except Exception as error:
                return {"full": str(error)}

async def main(generic_url, tools_url, full_url):
    return [await generic(generic_url), await tools(tools_url), await full(full_url)]

print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
"""


@contextmanager
def counting(*tasks: str, **envs: Any) -> Iterator[EnvServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENENV_TOKEN", "sesame")
        for task in tasks:
            patch.setitem(registry.TASKS, task, "counting_task:CountingSource")
        section = Envs(protocol="openenv", token_env="OPENENV_TOKEN", **envs)
        server = EnvServer(dict.fromkeys(tasks, Task()), section)
        try:
            yield server
        finally:
            server.close()


@pytest.fixture(scope="module")
def found(openenv_python: Path) -> Mapping[str, Any]:
    """What each client of the package finds, by its name; all in one process."""
    with (
        counting("counting") as alone,
        counting("counting", "summing") as several,
        counting("counting", concurrency=1) as full,
    ):
        urls = [alone.url, f"{several.url}/summing", full.url]
        argv = [str(openenv_python), "-c", JUDGE, *urls]
        ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return dict(zip(("generic", "tools", "full"), json.loads(ended.stdout), strict=True))


def test_a_generic_client_plays_an_episode(found: Mapping[str, Any]) -> None:
    generic = found["generic"]
    assert generic["first"]["messages"] == [
        {"role": "system", "content": "You count."},
        {"role": "user", "content": "Reach 5."},
    ]
    assert generic["one"] == ["2", None]
    state = dict(generic["state"])
    assert state.pop("episode_id")
    assert state == {"step_count": 1, "task": "counting", "item_id": "4"}
    metadata = {"status": "completed", "metrics": {"total": 5.0, "score": 1.0}, "score": 1.0}
    assert generic["last"] == [1.0, True, metadata]
    assert "No such session" in generic["over"]
    assert generic["again"] == "Reach 13."
    assert "13 is not a number here" in generic["broken"]


def test_a_client_of_tools_lists_and_calls_them(found: Mapping[str, Any]) -> None:
    """Through POST /mcp and the WebSocket that joins its session; under the task's path."""
    assert found["tools"] == {
        "listed": ["add", "say"],
        "called": "1",
        "said": "Call add.",
        "end": [1.0, True],
    }


def test_a_full_server_says_so(found: Mapping[str, Any]) -> None:
    assert "Server at capacity: 1/1" in found["full"]["full"]
    assert "CAPACITY_REACHED" in found["full"]["full"]


def test_our_adapter_trains_on_our_server() -> None:
    with counting("counting") as server:
        options = {"headers": {"Authorization": "Bearer sesame"}}
        task = registry.source("theirs", options, f"openenv:{server.url}")
        assert task.splits == ("all",)
        items = task.items("all")
        assert len(items) == 20
        environment = task.make(items[2])
        try:
            assert "Reach 3." in environment.start().messages[1].content
            assert [tool.name for tool in environment.tools] == ["add", "say"]
            environment.call([ToolCall("add", {"number": 1})])
            outcome = environment.call([ToolCall("add", {"number": 2})])
        finally:
            environment.close()
    assert (outcome.done, outcome.reward, outcome.metrics) == (True, 1.0, {"step_count": 2.0})


def test_the_task_api_answers_without_the_items_contents() -> None:
    with counting("counting") as server:

        def ask(path: str, body: Any = None, key: str = "sesame") -> tuple[int, Any]:
            method = "GET" if body is None else "POST"
            headers = {"authorization": f"Bearer {key}"}
            answer = urllib3.request(method, server.url + path, json=body, headers=headers)
            return answer.status, answer.json()

        assert ask("/list_environments") == (200, ["counting"])
        assert ask("/counting/splits") == (200, [{"name": "all", "type": "validation"}])
        assert ask("/counting/num_tasks", {"split": "all"}) == (200, {"num_tasks": 20})
        assert ask("/counting/task", {"split": "all", "index": 3}) == (200, {"task": {"id": "3"}})
        some = {"split": "all", "start": 1, "stop": 3}
        assert ask("/counting/task_range", some) == (200, {"tasks": [{"id": "1"}, {"id": "2"}]})
        assert ask("/counting/task", {"split": "all", "index": 30})[0] == 400
        assert ask("/counting/tasks", {"split": "al"})[0] == 400
        assert ask("/counting/reset", {"split": "all"})[0] == 404
        assert ask("/health", key="wrong")[0] == 401
