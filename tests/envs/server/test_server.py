"""The env server over real sockets: the protocol, its faults and its limits."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import urllib3
from running import eventually

from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.core.errors import ConfigError, ItemError
from agentrl.envs import registry
from agentrl.envs.server import wire
from agentrl.envs.server.server import EnvServer
from agentrl.envs.server.session import Timings

http = urllib3.PoolManager(maxsize=16, retries=False)
ITEM = registry.source("dbbench", {"items": 1}).items("train")[0]
CUSTOM = {"index": ITEM.item_id, "custom_task": ITEM.content}


def serving(*tasks: str, timings: Timings | None = None, **envs: Any) -> closing[EnvServer]:
    mixture = {task: Task(options={"items": 3, "test_items": 2}) for task in tasks or ("dbbench",)}
    return closing(EnvServer(mixture, Envs(**envs), timings))


@pytest.fixture(scope="module")
def server() -> Iterator[EnvServer]:
    with serving("dbbench", "alfworld") as server:
        yield server


def post(server: EnvServer, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = http.request("POST", server.url + path, body=content, headers=named)
    return answer.status, json.loads(answer.data)


def get(server: EnvServer, path: str) -> Any:
    return json.loads(http.request("GET", server.url + path).data)


def start(server: EnvServer, session_id: int, **changes: Any) -> tuple[int, Any]:
    body = CUSTOM | {"session_id": session_id} | changes
    return post(server, "/dbbench/api/start_sample", body)


def says(tool: str, arguments: str) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": tool, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def interact(
    server: EnvServer, session_id: int, message: dict[str, Any], **headers: str
) -> tuple[int, Any]:
    body = {"session_id": session_id, "messages": [message]}
    return post(server, "/dbbench/api/interact", body, **headers)


def sql(query: str) -> dict[str, Any]:
    return says("execute_sql", json.dumps({"query": query}))


COMMIT = says("commit_final_answer", json.dumps({"answers": list(ITEM.content["answers"])}))
TABLE = ITEM.content["tables"][0]["name"]
GROW = f"insert into {TABLE} select * from {TABLE} limit 1"  # noqa: S608
COUNT = f"select count(*) from {TABLE}"  # noqa: S608


def test_an_episode_has_the_protocols_six_keys_at_every_turn(server: EnvServer) -> None:
    body = json.dumps({"session_id": 1, "index": ITEM.item_id, "custom_task": ITEM.content})
    raw = http.request("POST", f"{server.url}/dbbench/api/start_sample", body=body)
    first = json.loads(raw.data)
    assert raw.headers["session_id"] == "1"
    assert {key: first[key] for key in ("status", "finish", "reward", "metric")} == {
        "status": "running",
        "finish": False,
        "reward": 0,
        "metric": {},
    }
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["tools"][0]["function"]["name"] == "execute_sql"
    _, told = interact(server, 1, sql("select 1"))
    assert told["session_id"] == 1
    assert told["env_out"]["messages"] == [
        {"role": "tool", "content": "[(1,)]", "name": "execute_sql", "tool_call_id": "c1"}
    ]
    assert told["env_out"]["tools"] == first["tools"]
    _, last = interact(server, 1, COMMIT)
    end = last["env_out"]
    assert (end["status"], end["finish"], end["reward"]) == ("completed", True, 1.0)
    assert interact(server, 1, COMMIT) == (400, {"detail": "No such session"})


def test_an_item_is_named_by_its_id_or_its_place(server: EnvServer) -> None:
    indices = get(server, "/dbbench/api/get_indices")
    assert len(indices) == len(set(indices)) == 5
    _, by_id = start(server, 2, index=indices[4], custom_task=None)
    _, by_place = start(server, 3, index=4, custom_task=None)
    assert by_id["messages"] == by_place["messages"]
    status, refused = start(server, 4, index="nowhere", custom_task=None)
    assert (status, refused) == (400, {"detail": "dbbench: no item has the index nowhere"})
    assert get(server, "/dbbench/api/get_sessions") == {"2": indices[4], "3": 4}
    assert get(server, "/dbbench/api/worker_status") == {"concurrency": 64, "current": 2}
    assert get(server, "/alfworld/api/get_sessions") == {}
    assert post(server, "/dbbench/api/cancel", {"session_id": 2}) == (200, {"session_id": 2})
    assert post(server, "/dbbench/api/cancel_all", {}) == (200, None)
    assert get(server, "/dbbench/api/get_sessions") == {}
    assert start(server, 4)[0] == 200
    assert post(server, "/dbbench/api/cancel", {"session_id": 4})[0] == 200


def test_a_numbered_turn_is_applied_once_however_often_it_is_sent(server: EnvServer) -> None:
    begin = {"session_id": 5, **CUSTOM}
    first = post(server, "/dbbench/api/start_sample", begin, agentrl_turn="0")
    assert post(server, "/dbbench/api/start_sample", begin, agentrl_turn="0") == first
    with ThreadPoolExecutor(8) as threads:
        sent = [threads.submit(interact, server, 5, sql(GROW), agentrl_turn="1") for _ in range(8)]
        assert {json.dumps(each.result()) for each in sent} == {json.dumps(sent[0].result())}
    rows = len(ITEM.content["tables"][0]["rows"]) + 1
    _, told = interact(server, 5, sql(COUNT), agentrl_turn="2")
    assert told["env_out"]["messages"][0]["content"] == f"[({rows},)]"
    status, refused = interact(server, 5, COMMIT, agentrl_turn="9")
    assert (status, refused["detail"]) == (400, "turn 9 of session 5: 3 is next")
    final = interact(server, 5, COMMIT, agentrl_turn="3")
    assert final[1]["env_out"]["finish"]
    assert interact(server, 5, COMMIT, agentrl_turn="3") == final


def test_a_session_id_is_taken_once(server: EnvServer) -> None:
    assert start(server, 6)[0] == 200
    assert start(server, 6) == (400, {"detail": "session 6 exists already"})
    assert post(server, "/dbbench/api/cancel", {"session_id": 6})[0] == 200


def test_a_client_that_counts_no_turns_is_held_to_the_tasks_limit(server: EnvServer) -> None:
    start(server, 7)
    for turn in range(1, 16):
        _, told = interact(server, 7, {"role": "assistant", "content": "hm"})
        assert told["env_out"]["finish"] == (turn == 15)
    assert told["env_out"]["status"] == "task limit reached"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
        (b"{}", "session_id"),
        ({"session_id": "x", "messages": [{"role": "assistant"}]}, "session_id"),
        ({"session_id": 1, "messages": None}, "messages"),
        ({"session_id": 1, "messages": []}, "messages"),
        ({"session_id": 1, "messages": [{}]}, "role"),
        ({"session_id": 1, "messages": [{"role": "user", "content": "hi"}]}, "role"),
        ({"session_id": 1, "messages": [{"role": "assistant", "tool_calls": [{}]}]}, "function"),
    ],
)
def test_a_malformed_body_is_refused_and_names_the_field(
    server: EnvServer, body: Any, field: str
) -> None:
    status, refused = post(server, "/dbbench/api/interact", body)
    assert status == 422
    assert field in refused["detail"]


def test_a_start_that_names_no_item_is_told_that_the_index_is_missing(server: EnvServer) -> None:
    status, refused = post(server, "/dbbench/api/start_sample", {"session_id": 8})
    assert (status, refused["detail"].startswith("index is missing")) == (422, True)


def test_a_body_that_is_too_large_is_refused(server: EnvServer) -> None:
    status, _ = post(server, "/dbbench/api/interact", b" " * (wire.MAX_BODY + 1))
    assert status == 413


def test_a_turn_that_is_no_number_is_refused(server: EnvServer) -> None:
    assert interact(server, 1, COMMIT, agentrl_turn="-1")[0] == 422
    assert interact(server, 1, COMMIT, agentrl_turn="0")[0] == 422


def test_a_broken_item_is_refused_and_frees_its_place() -> None:
    with serving(concurrency=1) as server:
        for session_id in range(3):
            status, refused = start(server, session_id, custom_task={"question": "?"})
            assert (status, "tables" in refused["detail"]) == (400, True)
        assert start(server, 9)[0] == 200


def test_a_server_of_one_task_answers_without_its_name() -> None:
    with serving() as server:
        assert len(get(server, "/api/get_indices")) == 5


def test_a_token_is_asked_for_where_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="is not loopback"):
        EnvServer({"dbbench": Task()}, Envs(host="::"))
    with pytest.raises(ConfigError, match="SECRET_OF_ENVS is not set"):
        EnvServer({"dbbench": Task()}, Envs(token_env="SECRET_OF_ENVS"))
    monkeypatch.setenv("SECRET_OF_ENVS", "s3cret")
    with serving(token_env="SECRET_OF_ENVS") as server:
        assert start(server, 1)[0] == 401
        body = CUSTOM | {"session_id": 1}
        bearer = "Bearer s3cret"
        assert post(server, "/api/start_sample", body, authorization=bearer)[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "evil.example:7100"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": "application/json; charset=utf-8", "origin": "http://localhost"}, 200),
    ],
)
def test_without_a_token_no_web_page_is_answered(
    server: EnvServer, headers: dict[str, str], status: int
) -> None:
    """A browser sends to loopback what any page asks it to."""
    assert post(server, "/dbbench/api/cancel_all", {}, **headers)[0] == status


def test_a_taken_port_and_an_unknown_task_are_told_at_the_start() -> None:
    with (
        serving() as server,
        pytest.raises(ConfigError, match="cannot listen"),
        serving(port=server.port),
    ):
        pass
    with pytest.raises(ItemError, match="did you mean dbbench"):
        EnvServer({"dbench": Task()})


def test_a_full_server_refuses_who_has_waited_for_long_enough() -> None:
    with serving(concurrency=1, timings=Timings(queue_s=0.1)) as server:
        start(server, 1)
        assert start(server, 2) == (406, {"detail": "full: 1 sessions run"})


def test_a_full_server_queues() -> None:
    with serving(concurrency=1) as server, ThreadPoolExecutor(1) as thread:
        start(server, 1)
        waiting = thread.submit(start, server, 3)
        eventually(lambda: waits(server, 3), within_s=60, text=lambda: "never queued")
        interact(server, 1, COMMIT)
        assert waiting.result()[0] == 200


def test_a_client_that_hangs_up_while_it_waits_gives_up_its_place_in_the_queue() -> None:
    with serving(concurrency=1) as server:
        start(server, 1)
        body = json.dumps(CUSTOM | {"session_id": 2}).encode()
        head = "POST /api/start_sample HTTP/1.1\r\nhost: localhost\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            link.sendall(head.encode() + body)
            eventually(lambda: waits(server, 2), within_s=60, text=lambda: "never queued")
        eventually(lambda: not waits(server, 2), within_s=60, text=lambda: "still queued")
        interact(server, 1, COMMIT)
        assert start(server, 3)[0] == 200


def waits(server: EnvServer, session_id: int) -> bool:
    return str(session_id) in get(server, "/api/get_sessions")


def test_an_idle_session_is_cancelled_and_its_place_freed() -> None:
    with serving(concurrency=1, idle_timeout_s=0.2) as server:
        start(server, 1)
        eventually(
            lambda: not get(server, "/api/get_sessions"), within_s=60, text=lambda: "too late"
        )
        assert start(server, 2)[0] == 200
        assert interact(server, 1, COMMIT)[0] == 400
