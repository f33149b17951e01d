"""The HTTP face, over real sockets, before the local and the scripted engine."""

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import urllib3
from hypothesis import given
from hypothesis import strategies as st
from running import eventually

from agentrl.core.errors import ConfigError, PolicyError
from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.local.engine import LocalEngine
from agentrl.serving.scripted import ScriptedEngine
from agentrl.serving.served_checkpoints import ServedCheckpoints
from agentrl.serving.server import PolicyApp, Server
from agentrl.serving.wire import MAX_BODY

Save = Callable[[str], Path]
manager = urllib3.PoolManager(maxsize=16, retries=False)


def post(server: Server, body: Any, **headers: str) -> tuple[int, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = manager.request("POST", f"{server.url}/v1/completions", body=content, headers=headers)
    return answer.status, json.loads(answer.data)


def get(server: Server, path: str, **headers: str) -> tuple[int, Any]:
    answer = manager.request("GET", server.url + path, headers=headers)
    return answer.status, json.loads(answer.data)


def body(**changes: Any) -> dict[str, Any]:
    """A request the scripted server answers, with changes."""
    return {"model": "c1", "prompt": [1, 2, 3], "max_tokens": 4, "return_token_ids": True} | changes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A scripted engine serving `c1` as current."""
    engine, served = ScriptedEngine(), ServedCheckpoints()
    engine.load("c1", Path())
    served.serve("current", "c1", 1)
    server = Server(PolicyApp(engine, served, ""), "127.0.0.1", 0, guarded=False)
    yield server
    server.close()


def test_a_completion_carries_token_ids_and_logprobs(engine: LocalEngine) -> None:
    served = ServedCheckpoints()
    served.serve("current", "a", 1)
    server = Server(PolicyApp(engine, served, ""), "127.0.0.1", 0, guarded=False)
    request = {
        "model": "a",
        "prompt": [1, 2, 3],
        "max_tokens": 6,
        "temperature": 0.8,
        "logprobs": 1,
        "return_token_ids": True,
        "stop_token_ids": [],
        "seed": 5,
        "user": "episode",
        "top_p": 1,
        "n": 1,
    }
    status, answer = post(server, request)
    expected = engine.submit(
        Request("a", [1, 2, 3], 6, temperature=0.8, seed=5, session="episode")
    ).result(timeout=60)
    choice = answer["choices"][0]
    assert status == 200
    assert answer["object"] == "text_completion"
    assert answer["model"] == "a"
    assert choice["token_ids"] == expected.token_ids
    assert choice["finish_reason"] == "length"
    assert choice["text"] == ""
    logprobs = choice["logprobs"]["token_logprobs"]
    torch.testing.assert_close(logprobs, expected.logprobs, atol=1e-5, rtol=0)
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in expected.token_ids]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 6
    server.close()


def test_the_defaults_leave_out_log_probabilities(server: Server) -> None:
    status, answer = post(server, body())
    assert status == 200
    assert answer["choices"][0]["logprobs"] is None
    assert len(answer["choices"][0]["token_ids"]) == 4


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": "text"}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "2"]}, "prompt"),
        ({"prompt": [[1]]}, "prompt"),
        ({"prompt": [768]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1] * 4093}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"logprobs": 5}, "logprobs"),
        ({"return_token_ids": False}, "return_token_ids"),
        ({"stop_token_ids": 3}, "stop_token_ids"),
        ({"seed": "x"}, "seed"),
        ({"user": 3}, "user"),
        ({"top_p": 0.9}, "top_p"),
        ({"n": 2}, "n"),
        ({"model": 1}, "model"),
        ({"stream": True}, "stream"),
        ({"top_k": 5}, "top_k"),
    ],
)
def test_a_bad_field_is_named(server: Server, changes: dict[str, Any], field: str) -> None:
    status, answer = post(server, body(**changes))
    assert status == 400
    assert answer["error"]["param"] == field
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("missing", ["model", "prompt", "return_token_ids"])
def test_a_missing_field_is_named(server: Server, missing: str) -> None:
    status, answer = post(server, {k: v for k, v in body().items() if k != missing})
    assert status == 400
    assert answer["error"]["param"] == missing


@given(content=st.one_of(st.binary(max_size=60), st.text(max_size=40).map(str.encode)))
def test_any_other_body_is_refused(server: Server, content: bytes) -> None:
    status, answer = post(server, content)
    assert status == 400
    assert answer["error"]["param"]


def test_a_body_nested_without_end_is_refused(server: Server) -> None:
    assert post(server, b'{"prompt":' + b"[" * 100_000)[0] == 400


def test_a_body_beyond_the_bound_is_refused(server: Server) -> None:
    status, answer = post(server, b" " * (MAX_BODY + 1))
    assert status == 413
    assert answer["error"]["param"] == "body"


def test_a_checkpoint_that_is_not_served_is_not_found(server: Server) -> None:
    status, answer = post(server, body(model="c0"))
    assert status == 404
    assert answer["error"]["code"] == "model_not_found"
    assert "c0" in answer["error"]["message"]


def test_health_and_models_show_what_is_served(server: Server) -> None:
    status, before = get(server, "/health")
    sampled = len(post(server, body())[1]["choices"][0]["token_ids"])
    _, told = get(server, "/health")
    assert (status, told) == (
        200,
        {
            "ready": True,
            "served": {"current": {"checkpoint_id": "c1", "version": 1}},
            "problem": "",
            "sampled_tokens": before["sampled_tokens"] + sampled,
        },
    )
    status, models = get(server, "/v1/models")
    assert status == 200
    assert [entry["id"] for entry in models["data"]] == ["c1"]


class Dead(ScriptedEngine):
    def alive(self) -> bool:
        return False


def test_a_server_whose_engine_died_is_not_healthy() -> None:
    served = ServedCheckpoints()
    served.serve("current", "c1", 1)
    with closing(Server(PolicyApp(Dead(), served, ""), "127.0.0.1", 0, guarded=False)) as server:
        status, told = get(server, "/health")
    assert (status, told["ready"]) == (503, False)


def test_without_a_checkpoint_the_server_is_not_ready() -> None:
    server = Server(
        PolicyApp(ScriptedEngine(), ServedCheckpoints(), ""), "127.0.0.1", 0, guarded=False
    )
    empty = {"ready": False, "served": {}, "problem": "", "sampled_tokens": 0}
    assert get(server, "/health") == (200, empty)
    server.close()


def test_a_bearer_token_is_demanded_on_every_path() -> None:
    app = PolicyApp(ScriptedEngine(), ServedCheckpoints(), "secret-ß")
    server = Server(app, "127.0.0.1", 0, guarded=True)
    for path in ("/health", "/v1/models"):
        assert get(server, path)[0] == 401
    assert post(server, body(), authorization="Bearer secret")[0] == 401
    server.close()
    server = Server(
        PolicyApp(ScriptedEngine(), ServedCheckpoints(), "secret"), "127.0.0.1", 0, guarded=True
    )
    assert get(server, "/health", authorization="Bearer secret")[0] == 200
    server.close()


def test_off_loopback_a_token_is_required() -> None:
    with pytest.raises(ConfigError, match="needs a bearer token"):
        Server(PolicyApp(ScriptedEngine(), ServedCheckpoints(), ""), "0.0.0.0", 0, guarded=False)  # noqa: S104


def test_a_taken_port_is_one_clear_error(server: Server) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        Server(
            PolicyApp(ScriptedEngine(), ServedCheckpoints(), ""),
            "127.0.0.1",
            server.port,
            guarded=False,
        )


def test_a_freed_port_can_be_had_again() -> None:
    app = PolicyApp(ScriptedEngine(), ServedCheckpoints(), "")
    first = Server(app, "127.0.0.1", 0, guarded=False)
    get(first, "/health")
    first.close()
    second = Server(app, "127.0.0.1", first.port, guarded=False)
    assert get(second, "/health")[0] == 200
    second.close()


class SlowEngine(ScriptedEngine):
    """Answers when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.go = threading.Event()

    def submit(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        answer = super().submit(request)
        self.asked.set()

        def later() -> None:
            self.go.wait(200)
            future.set_result(answer.result())

        threading.Thread(target=later).start()
        return future


def test_a_checkpoint_being_retired_finishes_what_it_began_and_refuses_the_rest() -> None:
    engine, served = SlowEngine(), ServedCheckpoints()
    engine.load("c1", Path())
    served.serve("current", "c1", 1)
    server = Server(PolicyApp(engine, served, ""), "127.0.0.1", 0, guarded=False)
    with ThreadPoolExecutor(2) as pool:
        begun = pool.submit(post, server, body())
        assert engine.asked.wait(60)
        retired = pool.submit(served.retire, "c1", 60.0)
        eventually(lambda: not served.checkpoints(), within_s=60, text=lambda: "c1 stays open")
        assert post(server, body())[0] == 404
        assert not retired.done()
        engine.go.set()
        assert retired.result(timeout=60)
        assert begun.result(timeout=60)[0] == 200
    server.close()


class EndlessEngine(ScriptedEngine):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.ended = threading.Event(), threading.Event()

    def submit(self, request: Request) -> Future[Completion]:  # noqa: ARG002
        future: Future[Completion] = Future()
        future.add_done_callback(lambda done: self.ended.set() if done.cancelled() else None)
        self.asked.set()
        return future


def test_a_client_that_hangs_up_ends_what_is_sampled_for_it() -> None:
    engine, served = EndlessEngine(), ServedCheckpoints()
    engine.load("c1", Path())
    served.serve("current", "c1", 1)
    server = Server(PolicyApp(engine, served, ""), "127.0.0.1", 0, guarded=False)
    content = json.dumps(body()).encode()
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as client:
        client.request("POST", "/v1/completions", content, {"content-type": "application/json"})
        assert engine.asked.wait(60)
        assert not engine.ended.is_set()
    assert engine.ended.wait(60)
    assert served.retire("c1", timeout_s=60)  # nothing is under way any more
    server.close()


class FailingEngine(ScriptedEngine):
    """As an engine whose policy is unloaded while it samples."""

    def submit(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        future.set_exception(PolicyError(f"policy {request.policy} was unloaded"))
        return future


def test_an_engine_that_fails_answers_503() -> None:
    engine, served = FailingEngine(), ServedCheckpoints()
    engine.load("c1", Path())
    served.serve("current", "c1", 1)
    server = Server(PolicyApp(engine, served, ""), "127.0.0.1", 0, guarded=False)
    status, answer = post(server, body())
    assert status == 503
    assert answer["error"]["code"] == "policy_failed"
    server.close()


def test_under_swaps_no_completion_mixes_checkpoints(engine: LocalEngine) -> None:
    """Greedy answers under load are those of exactly the checkpoint that was asked for."""
    expected = {
        name: engine.submit(Request(name, [1, 2, 3], 12, temperature=0.0)).result(60).token_ids
        for name in "ab"
    }
    served = ServedCheckpoints()
    server = Server(PolicyApp(engine, served, ""), "127.0.0.1", 0, guarded=False)
    stop, seen = threading.Event(), Counter[int]()

    def swap() -> None:
        turn = 0
        while min(seen[200], seen[404]) < 20:
            turn += 1
            new, old = ("a", "b") if turn % 2 else ("b", "a")
            served.serve("current", new, turn)
            assert served.retire(old, timeout_s=60)
            stop.wait(0.02)

    def ask(seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            name = rng.choice("ab")
            status, answer = post(server, body(model=name, max_tokens=12, temperature=0))
            seen[status] += 1
            if status == 200:
                assert answer["choices"][0]["token_ids"] == expected[name]

    with ThreadPoolExecutor(5) as pool:
        asking = [pool.submit(ask, seed) for seed in range(4)]
        try:
            pool.submit(swap).result(timeout=200)
        finally:
            stop.set()
        for future in asking:
            future.result(timeout=60)
    assert set(seen) == {200, 404}
    server.close()
