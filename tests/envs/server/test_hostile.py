"""Whatever is sent to the env server gets a clear answer and harms no other session."""

import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3
from env_server_client import says
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.core.config.config import Config
from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.core.http.server import MAX_HEAD
from agentrl.envs import registry
from agentrl.envs.server import wire
from agentrl.envs.server.server import EnvServer
from agentrl.envs.server.session import Timings

http = urllib3.PoolManager(maxsize=4, retries=False, timeout=30)
WITNESS = -(1 << 40)  # the session id of somebody else
VERBS = ("start_sample", "interact", "cancel", "cancel_with_notice")

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
arguments = values.map(json.dumps) | values | st.just('{"number": 1}')
functions = values | st.fixed_dictionaries(
    {"name": st.just("add") | values, "arguments": arguments}, optional={"error": values}
)
calls = values | st.lists(
    values | st.fixed_dictionaries({"function": functions}, optional={"id": values})
)
messages = st.lists(
    values
    | st.fixed_dictionaries(
        {"role": st.just("assistant") | values},
        optional={"content": values, "tool_calls": calls, "name": values},
    ),
    max_size=3,
)
bodies = values | st.fixed_dictionaries(
    {},
    optional={
        "session_id": st.integers(0, 3) | values,
        "index": st.integers(-2, 25) | values,
        "custom_task": st.fixed_dictionaries({"target": st.integers(1, 3) | values}) | values,
        "messages": messages | values,
    },
)
turns = (
    st.none()
    | st.integers(-1, 3).map(str)
    | st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]))
)


@pytest.fixture(scope="module")
def server() -> Iterator[EnvServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.TASKS, "counting", "counting_task:CountingSource")
        config = Config(tasks={"counting": Task()}, envs=Envs(concurrency=16))
        server = EnvServer(config.tasks, config.envs, Timings(queue_s=0.02))
        start = json.dumps({"session_id": WITNESS, "index": 19}).encode()
        assert post(server, "start_sample", start)[0] == 200
        try:
            yield server
        finally:
            server.close()


@pytest.fixture(autouse=True)
def witness(server: EnvServer, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Somebody else's session goes on as if nothing were, and no handler has failed."""
    before = count(server)
    yield
    assert count(server) == before + 1
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def count(server: EnvServer) -> int:
    body = json.dumps({"session_id": WITNESS, "messages": [says(1)]}).encode()
    status, answer = post(server, "interact", body)
    assert status == 200
    return int(answer["env_out"]["messages"][0]["content"])


def post(server: EnvServer, verb: str, body: bytes, turn: str | None = None) -> tuple[int, Any]:
    headers = {} if turn is None else {wire.TURN: turn}
    reply = http.request("POST", f"{server.url}/api/{verb}", body=body, headers=headers)
    return reply.status, json.loads(reply.data)


@settings(max_examples=150, deadline=None)
@given(verb=st.sampled_from(VERBS), body=bodies, turn=turns)
def test_any_json_is_answered_or_refused_with_a_reason(
    server: EnvServer, verb: str, body: Any, turn: str | None
) -> None:
    status, answer = post(server, verb, json.dumps(body).encode(), turn)
    assert status in {200, 400, 406, 422}
    if status != 200:
        assert isinstance(answer["detail"], str)
        assert answer["detail"]


@settings(max_examples=100, deadline=None)
@given(verb=st.sampled_from(VERBS), body=st.binary(max_size=300))
def test_bytes_that_are_no_json_are_refused(server: EnvServer, verb: str, body: bytes) -> None:
    status, answer = post(server, verb, body)
    assert status == 422
    assert answer["detail"]


heads = st.binary(max_size=200) | st.builds(
    lambda method, path, length, rest: (
        f"{method} /api/{path} HTTP/1.1\r\nhost: localhost\r\n".encode()
        + f"content-length: {length}\r\n\r\n".encode()
        + rest
    ),
    st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS"]),
    st.sampled_from([*VERBS, "get_sessions", "worker_status", "..", "%00", "?a=b", ""]),
    st.integers(-1, 20) | st.just(1 << 62) | st.just("x"),
    st.binary(max_size=30),
)


@settings(max_examples=100, deadline=None)
@given(requests=st.lists(heads, min_size=1, max_size=3))
def test_what_is_no_http_is_refused_or_hung_up_on(server: EnvServer, requests: list[bytes]) -> None:
    assert b"HTTP/1.1 5" not in raw(server, b"".join(requests))


def test_a_head_without_an_end_is_hung_up_on(server: EnvServer) -> None:
    head = b"POST /api/interact HTTP/1.1\r\nhost: localhost\r\n"
    assert b" 200 " not in raw(server, head + b"a: b\r\n" * MAX_HEAD, whole=False)
    assert b" 200 " not in raw(server, head + b"a: " + b"b" * 8 * MAX_HEAD, whole=False)


@pytest.mark.parametrize("line", [b"a: b\r\n", b"a: " + b"b" * 60_000 + b"\r\n"])
def test_a_whole_head_may_have_64_kib(server: EnvServer, line: bytes) -> None:
    start = b"GET /api/worker_status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"

    def told(size: int) -> bytes:
        head = start + line * ((size - len(start)) // len(line))
        padding = b"c: " + b"d" * (size - len(head) - 7) + b"\r\n"
        return raw(server, head + padding + b"\r\n", whole=False)

    assert b" 200 " in told(MAX_HEAD)
    for size in (66_000, 70_000, 100_000, 140_000, 300_000):
        answer = told(size)
        assert not answer or (b" 431 " in answer and b"the head exceeds 65536 bytes" in answer)


@pytest.mark.parametrize(
    "framing", [b"content-length: %d\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n"]
)
def test_a_body_without_an_end_is_refused(server: EnvServer, framing: bytes) -> None:
    size = wire.MAX_BODY + 1
    head = b"POST /api/interact HTTP/1.1\r\nhost: localhost\r\n"
    if b"%d" in framing:
        assert b"HTTP/1.1 413" in raw(server, head + framing % size + b" " * size)
    else:
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        assert b"HTTP/1.1 413" in raw(server, head + framing + chunk * 9)


def raw(server: EnvServer, content: bytes, *, whole: bool = True) -> bytes:
    """What comes back until the server hangs up; `whole`: we say that nothing more comes."""
    with socket.create_connection(("127.0.0.1", server.port)) as link:
        link.settimeout(60)
        got = b""
        try:
            link.sendall(content)
            if whole:
                link.shutdown(socket.SHUT_WR)
            while some := link.recv(65536):
                got += some
        except ConnectionError:  # it hung up
            pass
        return got
