"""Sources whose items cannot be made, chores that fail: a line, and the server goes on."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import urllib3
from conversation import Listener
from counting import CountingSource
from running import eventually
from structlog.testing import capture_logs

from core.config import Config, Envs, Task
from core.errors import BrokerError, EnvironmentFailure, ItemError
from envs import controller, face, registry
from envs import server as server_module
from envs.contract import Item
from envs.server import EnvServer


@pytest.fixture
def unmade(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose items are on a disk that is away."""

    def items(self: CountingSource, split: str) -> Sequence[Item]:
        raise ItemError(f"{self.name}: split {split} is not here")

    monkeypatch.setattr(CountingSource, "items", items)
    monkeypatch.setitem(registry.TASKS, "counting", "counting:CountingSource")


@contextmanager
def serving(**envs: Any) -> Iterator[EnvServer]:
    server = EnvServer(Config(tasks={"counting": Task()}, envs=Envs(**envs)))
    try:
        yield server
    finally:
        server.close()


def ask(server: EnvServer, method: str, verb: str, body: Any = None) -> tuple[int, Any]:
    content = json.dumps(body).encode() if body else None
    answer = urllib3.request(method, f"{server.url}/api/{verb}", body=content, retries=False)
    return answer.status, json.loads(answer.data)


@pytest.mark.usefixtures("unmade")
def test_items_that_cannot_be_made_are_refused_alike() -> None:
    refused = (400, {"detail": "counting: split all is not here"})
    with serving() as server:
        assert ask(server, "GET", "get_indices") == refused
        assert ask(server, "POST", "start_sample", {"session_id": 1, "index": 0}) == refused


@pytest.mark.usefixtures("unmade")
def test_a_task_whose_items_cannot_be_made_is_not_registered_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "BEAT_S", 0.01)
    with Listener() as listener, capture_logs() as logs, serving(controller=listener.url) as server:
        eventually(lambda: bool(logs), within_s=60, text=lambda: "nothing told")
        assert ask(server, "GET", "worker_status")[0] == 200
    assert listener.told == []
    assert [(each["event"], each["error"]) for each in logs] == [
        ("task not registered", "counting: split all is not here")
    ]


def test_tending_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [EnvironmentFailure("frozen"), OSError(24, "Too many open files"), BrokerError("away")]
    left, tended = list(errors), []

    def tend() -> None:
        if left:
            raise left.pop(0)
        tended.append(1)

    hosted = {"counting": face.Hosted(CountingSource({}), 3)}
    monkeypatch.setattr(server_module, "_host", lambda *_: (hosted, tend))
    monkeypatch.setattr(face, "TEND_S", 0.01)
    with capture_logs() as logs, serving():
        eventually(lambda: bool(tended), within_s=60, text=lambda: "it ended")
    told = [each["error"] for each in logs if each["event"] == "sandboxes not tended"]
    assert told == ["frozen", "OSError: [Errno 24] Too many open files", "away"]
