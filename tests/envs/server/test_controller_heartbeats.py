"""What a controller is told: by heartbeats, by notices, and again after it was away."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from env_server_client import ControllerServer, post, run_conversation, start
from running import eventually
from structlog.testing import capture_logs

from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.envs import registry
from agentrl.envs.server.server import EnvServer
from agentrl.envs.server.session import Timings


@contextmanager
def counting(**envs: Any) -> Iterator[EnvServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.TASKS, "counting", "counting_task:CountingSource")
        server = EnvServer({"counting": Task()}, Envs(**envs), Timings(beat_s=0.05))
        try:
            yield server
        finally:
            server.close()


def test_heartbeats_say_where_the_task_is_and_what_it_has() -> None:
    advertise = "http://envs.example:7100"
    with ControllerServer() as listener, counting(controller=listener.url, advertise=advertise):
        eventually(lambda: len(listener.told) > 2, within_s=60, text=lambda: "no heartbeats")
    assert listener.told[0].path == "/api/receive_heartbeat"
    assert listener.told[0].body == {
        "name": "counting",
        "address": "http://envs.example:7100/counting/api",
        "concurrency": 64,
        "indices": [str(n) for n in range(20)],
    }


def test_a_session_cancelled_with_notice_is_told_once_it_has_ended() -> None:
    with ControllerServer() as listener, counting(controller=listener.url) as server:
        ends = [
            start(1, 3),
            start(2, 3),
            start(3, 3),
            post("cancel_with_notice", {"session_id": 1}),
            post("cancel_with_notice", {"session_id": 1}),
            post("cancel_all_with_notice", None),
        ]
        statuses = [each["status"] for each in run_conversation(f"{server.url}/api", ends)]
        assert statuses == [200, 200, 200, 200, 400, 200]
        eventually(lambda: len(listener.of("cancel_notice")) == 3, within_s=60, text=lambda: "")
    told = {(each.body["session_id"], each.session) for each in listener.of("cancel_notice")}
    assert told == {(1, "1"), (2, "2"), (3, "3")}


@pytest.mark.parametrize("there", [False, True])
def test_a_controller_that_fails_is_logged_once_and_harms_nobody(there: bool) -> None:
    listener = ControllerServer(status=500)
    if not there:
        listener.__exit__()
    with capture_logs() as logs, counting(controller=listener.url) as server:
        eventually(lambda: bool(warnings(logs)), within_s=60, text=lambda: "no warning")
        said = run_conversation(f"{server.url}/api", [start(n, 3) for n in range(5)])
        if there:
            eventually(lambda: len(listener.told) > 2, within_s=60, text=lambda: "told once")
    if there:
        listener.__exit__()
    assert [each["status"] for each in said] == [200] * 5
    assert len(warnings(logs)) == 1


def warnings(logs: Any) -> list[Any]:
    return [each for each in logs if each["event"] == "Controller unreachable"]
