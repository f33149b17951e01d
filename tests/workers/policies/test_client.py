import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

import pytest
from policy_servers import serve

from agentrl.core.errors import ConfigError, PolicyError
from agentrl.core.http.answers import LARGEST
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.serving.engine_api import ModelLimits
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.policies.client import (
    Ask,
    CheckpointNotServed,
    PolicyClient,
    RequestRefused,
    Unanswered,
)

ASK = Ask([1, 2], 4, 1.0, [3], 7, "e/1")


@contextmanager
def _server(status: int, body: bytes) -> Iterator[LivePolicy]:
    """A server that gives every request the same answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield LivePolicy("s", f"http://127.0.0.1:{server.server_port}", "current", "c", 0)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _ask(policy: LivePolicy) -> object:
    with closing(PolicyClient()) as client:
        return client.complete(policy, ASK, timeout_s=2.0)


def test_a_completion_is_what_the_server_sampled() -> None:
    engine = ScriptedEngine(lambda _request: [9, 8, 3, 5], limits=ModelLimits(10, 64))
    with serve(engine, {"c": ("current", Path())}) as server, closing(PolicyClient()) as client:
        policy = LivePolicy("s", server.url, "current", "c", 0)
        answer = client.complete(policy, ASK, timeout_s=5.0)
        assert (answer.token_ids, answer.finish_reason) == ([9, 8, 3], "stop")
        assert len(answer.logprobs) == 3
        other = LivePolicy("s", server.url, "current", "another", 0)
        with pytest.raises(CheckpointNotServed):
            client.complete(other, ASK, timeout_s=5.0)
        long = Ask([1] * 100, 4, 1.0, [3], 7, "e/1")
        with pytest.raises(PolicyError, match="400"):
            client.complete(policy, long, timeout_s=5.0)


def test_a_request_that_an_external_model_refused_says_why() -> None:
    refused = b'{"error": {"message": "the context is too long"}}'
    with _server(422, refused) as policy, pytest.raises(RequestRefused, match="is too long"):
        _ask(policy)


@pytest.mark.parametrize("status", [400, 422, 503])
def test_an_error_gives_the_beginning_of_the_servers_reason(status: int) -> None:
    body = b'{"error": {"message": "it is down %s"}}' % (b"x" * 9999)
    with _server(status, body) as policy, pytest.raises(PolicyError, match="it is down") as error:
        _ask(policy)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, CheckpointNotServed), (503, CheckpointNotServed), (504, Unanswered)],
)
def test_a_server_that_refuses_for_now_asks_for_another_draw(
    status: int, kind: type[CheckpointNotServed]
) -> None:
    with _server(status, b"{}") as policy, pytest.raises(CheckpointNotServed) as error:
        _ask(policy)
    assert error.type is kind


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"token_ids": [1], "logprobs": null}]}',
        b'{"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [null]}}]}',
        b'{"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0]}}]}',
        b'{"choices": [{"token_ids": [], "logprobs": {"token_logprobs": []}}]}',
        b'{"choices": [{"token_ids": ["a"], "logprobs": {"token_logprobs": [0.0]}}]}',
    ],
)
def test_an_ill_formed_answer_is_a_policy_error(body: bytes) -> None:
    with _server(200, body) as policy, pytest.raises(PolicyError, match="policy server"):
        _ask(policy)


def test_a_token_that_is_not_set_is_named() -> None:
    with pytest.raises(ConfigError, match="NO_SUCH_TOKEN is not set"):
        PolicyClient(token_env="NO_SUCH_TOKEN")


def test_an_answer_that_trickles_for_ever_ends_with_the_time_given() -> None:
    """Each byte comes in time; all of them never do."""
    over = threading.Event()

    class Trickle(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "1000000000")
            self.end_headers()
            with suppress(OSError):
                while not over.wait(0.01):
                    self.wfile.write(b" ")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Trickle) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        with (
            closing(PolicyClient()) as client,
            pytest.raises(Unanswered, match="too slowly"),
        ):
            client.complete(LivePolicy("s", url, "current", "c", 0), ASK, timeout_s=3.0)
        over.set()
        server.shutdown()
        thread.join()


def test_an_answer_without_end_is_cut_off() -> None:
    with (
        _server(200, b" " * (LARGEST + 1)) as policy,
        closing(PolicyClient()) as client,
        pytest.raises(CheckpointNotServed, match="more than"),
    ):
        client.complete(policy, ASK, timeout_s=200.0)
