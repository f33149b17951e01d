"""The original system's task worker, for real: driven by our client, compared with our server."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from env_server_client import PLACES, ControllerServer, Exchange, run_conversation
from lossy_proxy import Flaky
from running import eventually

from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.core.errors import EnvironmentFailure
from agentrl.core.types import Status
from agentrl.envs import registry
from agentrl.envs.contract import Environment, Item, TaskSource, ToolCall
from agentrl.envs.server.client import RemoteSource, RemoteWorker
from agentrl.envs.server.server import EnvServer
from agentrl.envs.server.task_http_client import RemoteServer

pytestmark = pytest.mark.oracles

HERE = Path(__file__).parent
RECORDED = HERE.parent / "envs" / "server" / "recorded" / "agentrl-worker-0.4.0.json"
NOBODY = "http://127.0.0.1:9/api"


@contextmanager
def working(python: Path, controller: str) -> Iterator[int]:
    """A worker's port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    command = [python, HERE / "counting_worker.py", str(port), controller, str(PLACES)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def worker(oracles: Path) -> Iterator[int]:
    with working(oracles, NOBODY) as port:
        yield port


def add(number: Any) -> list[ToolCall]:
    return [ToolCall("add", {"number": number})]


def begun(source: TaskSource, place: int) -> Environment:
    environment = source.make(source.items("all")[place])
    environment.start()
    return environment


def test_the_recorded_conversation_is_still_the_workers(worker: int) -> None:
    recorded = json.loads(RECORDED.read_text())
    held = run_conversation(f"http://127.0.0.1:{worker}/api")
    assert [compared(each) for each in held] == [compared(each) for each in recorded]


def compared(exchange: Exchange) -> Exchange:
    """Without the text of a malformed body's refusal, which is its JSON library's."""
    return exchange | ({"answer": None} if exchange["status"] == 422 else {})


def test_our_client_plays_whole_episodes(worker: int) -> None:
    source = RemoteSource(Envs(url=f"http://127.0.0.1:{worker}/api"), "counting", {})
    assert [item.item_id for item in source.items("all")] == [str(n) for n in range(20)]
    environment = source.make(source.items("all")[4])
    assert [tool.name for tool in environment.tools] == ["add"]
    assert [said.content for said in environment.start().messages] == ["You count.", "Reach 5."]
    assert environment.call("hm").messages[0].content == "Call add."
    told = environment.call(add(2)).messages[0]
    assert (told.role, told.name, told.content) == ("tool", "add", "2")
    end = environment.call(add(3))
    assert (end.done, end.status, end.reward, end.score) == (True, Status.COMPLETED, 1.0, 1.0)
    assert end.metrics == {"total": 5.0, "score": 1.0}
    with pytest.raises(EnvironmentFailure, match="over"):
        environment.call(add(1))


def test_its_other_ends_are_ours(worker: int) -> None:
    source = RemoteSource(Envs(url=f"http://127.0.0.1:{worker}/api"), "counting", {})
    end = begun(source, 2).call(add(5))
    assert (end.done, end.status, end.reward) == (True, Status.COMPLETED, 0.0)
    end = begun(source, 2).call(add("two"))
    assert (end.done, end.status, end.reward) == (True, Status.INVALID_ACTION, 0.0)
    with pytest.raises(EnvironmentFailure, match="task error"):
        begun(source, 2).call(add(13))


def test_a_full_worker_is_asked_again_and_closing_frees_its_place(worker: int) -> None:
    remote = RemoteServer(Envs(url=f"http://127.0.0.1:{worker}/api"), "counting", start_s=0.5)
    source = RemoteWorker(remote, "counting", {})
    environments = [begun(source, 3) for _ in range(PLACES)]
    with pytest.raises(EnvironmentFailure, match="concurrency limit"):
        begun(source, 3)
    for environment in environments:
        environment.close()
    begun(source, 3).close()


def test_a_turn_whose_answer_is_lost_is_applied_once(worker: int) -> None:
    flaky = Flaky(worker)
    try:
        source = RemoteSource(Envs(url=f"{flaky.url}/api"), "counting", {})
        environment = source.make(Item("counting", "5", {"index": 5}))
        with pytest.raises(EnvironmentFailure, match="already exists"):
            environment.start()  # its answer was lost, and cannot be had again
        environment.close()
        flaky.answers = 1
        environment = source.make(Item("counting", "5", {"index": 5}))
        environment.start()
        with pytest.raises(EnvironmentFailure):
            environment.call(add(1))
        assert flaky.answers == 3
        environment.close()
    finally:
        flaky.close()


def test_heartbeats_and_notices_are_the_workers(
    oracles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ControllerServer() as theirs, working(oracles, theirs.url) as port:
        told_by_worker = beat_and_notice(theirs, f"http://127.0.0.1:{port}/api")
    monkeypatch.setitem(registry.TASKS, "counting", "counting_task:CountingSource")
    with ControllerServer() as ours:
        envs = Envs(concurrency=PLACES, controller=ours.url)
        server = EnvServer({"counting": Task()}, envs)
        try:
            told_by_us = beat_and_notice(ours, f"{server.url}/counting/api")
        finally:
            server.close()
    (beat, notice), (our_beat, our_notice) = told_by_worker, told_by_us
    assert our_notice == notice
    assert our_beat.keys() == beat.keys()
    assert our_beat["address"] == f"{server.url}/counting/api"
    assert our_beat["indices"] == [str(index) for index in beat["indices"]]
    for key in ("name", "concurrency"):
        assert our_beat[key] == beat[key]


def beat_and_notice(listener: ControllerServer, url: str) -> tuple[Any, Any]:
    """The body of a heartbeat; body and header of the notice that a session has ended."""
    eventually(lambda: bool(listener.of("receive_heartbeat")), within_s=60, text=lambda: "no beat")
    run_conversation(
        url,
        [
            {"method": "POST", "verb": "start_sample", "body": {"session_id": 8, "index": 3}},
            {"method": "POST", "verb": "cancel_with_notice", "body": {"session_id": 8}},
        ],
    )
    eventually(lambda: bool(listener.of("cancel_notice")), within_s=60, text=lambda: "no notice")
    notice = listener.of("cancel_notice")[0]
    return listener.of("receive_heartbeat")[0].body, (notice.body, notice.session)
