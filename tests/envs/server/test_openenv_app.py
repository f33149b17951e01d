"""Our tasks as an OpenEnv server: the clients of its own package play them, and our adapter."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3
from counting_task import CountingSource

from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.core.errors import ConfigError, EnvironmentFailure
from agentrl.envs import registry
from agentrl.envs.contract import ToolCall
from agentrl.envs.server import wire
from agentrl.envs.server.app import HostedTask
from agentrl.envs.server.server import EnvServer
from agentrl.envs.server.session import Timings
from agentrl.envs.server.sessions import Sessions

pytest.importorskip("websockets", reason="needs pip install 'agentrl-system[openenv]'")
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from agentrl.envs.adapters.openenv.server import Server
from agentrl.envs.server.openenv_app import OpenEnvApp

KEY = {"authorization": "Bearer sesame"}
SAY = {"type": "call_tool", "tool_name": "say", "arguments": {"text": "hm"}}
TOO_LARGE = f"the body exceeds {wire.MAX_BODY} bytes"

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
def counting(
    *tasks: str, kind: str = "CountingSource", items: int = 20, **envs: Any
) -> Iterator[EnvServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENENV_TOKEN", "sesame")
        for task in tasks:
            patch.setitem(registry.TASKS, task, f"counting_task:{kind}")
        section = Envs(protocol="openenv", token_env="OPENENV_TOKEN", **envs)
        server = EnvServer(dict.fromkeys(tasks, Task(options={"items": items})), section)
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
    assert generic["one"] == ["2", 0.0]
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


def ours(server: EnvServer) -> Server:
    return Server(server.url, KEY, timeout_s=20, wait_s=0)


def test_tools_that_come_in_the_course_of_an_episode_are_listed() -> None:
    with counting("counting", kind="LateToolSource") as server:
        session, _ = ours(server).open({"index": 4})
        try:
            episode = session.state()["episode_id"]
            assert [tool.name for tool in session.tools()] == ["say"]
            session.step(SAY)
            assert [tool.name for tool in session.tools()] == ["add", "say"]
            assert session.state()["episode_id"] == episode, "listing begins no other episode"
        finally:
            session.close()


def test_an_empty_split_is_named() -> None:
    with (
        counting("counting", items=0) as server,
        pytest.raises(EnvironmentFailure, match="counting: split all is empty"),
    ):
        ours(server).open({})


def test_splits_that_cannot_be_read_are_one_error() -> None:
    away = Task(source="openenv:http://127.0.0.1:1", options={"wait_s": 0.0})
    server = EnvServer({"away": away}, Envs(protocol="openenv"))
    try:
        answer = urllib3.request("GET", f"{server.url}/away/splits")
    finally:
        server.close()
    assert answer.status == 400
    assert "Connection refused" in answer.json()["detail"]


def test_what_exceeds_the_limit_is_refused_with_its_reason() -> None:
    large = " " * (wire.MAX_BODY + 1)
    with counting("counting") as server:
        for path in ("/mcp", "/counting/tasks"):
            answer = urllib3.request("POST", server.url + path, body=large, headers=KEY)
            assert (answer.status, answer.json()) == (413, {"detail": TOO_LARGE})
        address = server.url.replace("http", "ws") + "/ws"
        with connect(address, additional_headers=KEY, proxy=None) as socket:
            socket.send(large)
            with pytest.raises(ConnectionClosed) as caught:
                socket.recv(timeout=20)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009  # RFC 6455: message too big


def test_a_binary_message_is_refused_and_the_client_goes_on() -> None:
    with counting("counting") as server:
        address = server.url.replace("http", "ws") + "/ws"
        with connect(address, additional_headers=KEY, proxy=None) as socket:
            socket.send(b'{"type": "reset"}')
            refused = json.loads(socket.recv(timeout=20))
            socket.send('{"type": "reset"}')
            begun = json.loads(socket.recv(timeout=20))
    assert refused["data"] == {
        "message": "Invalid JSON: a binary message; send text",
        "code": "INVALID_JSON",
    }
    assert begun["type"] == "observation"


def test_a_client_that_leaves_in_its_request_is_no_error() -> None:
    sessions, sent = Sessions(1, 60.0, Timings()), list[Any]()
    app = OpenEnvApp({"counting": HostedTask(CountingSource({}), 5)}, sessions, "", lambda: None)
    scope = {"type": "http", "method": "POST", "path": "/mcp", "raw_path": b"/mcp"}

    async def leave() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1")]
    asyncio.run(app({**scope, "query_string": b"", "headers": headers}, leave, send))
    sessions.threads.close()
    assert sent[0]["status"] == 499


def test_without_websockets_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "websockets", None)
    with pytest.raises(ConfigError, match="needs the package websockets") as caught:
        EnvServer({}, Envs(protocol="openenv"))
    assert "agentrl-system[openenv]" in caught.value.hint
