"""What a client may not do to any of our HTTP servers."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from running import eventually
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agentrl.core.http.server import HttpServer, make_application, read_body
from agentrl.core.processes.threads import EXIT_SOFTWARE

HEAD = b"GET /known HTTP/1.1\r\nhost: here\r\n"


async def known(_: Request) -> Response:
    return PlainTextResponse("known")


async def slow(request: Request) -> Response:
    await read_body(request, most=100, within_s=0.2)
    return PlainTextResponse("whole")


def fault(status: int, message: str) -> Response:
    return PlainTextResponse(message, status)


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with closing(HttpServer("envs", "127.0.0.1", 0, guarded=False)) as server:
        routes = [Route("/known", known), Route("/slow", slow, methods=["POST"])]
        application = make_application(routes, fault)
        server.start(application, connections=3, head_s=1.0)
        yield server


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def read(client: socket.socket) -> bytes:
    """What the server sends; empty: it has closed the connection."""
    try:
        return client.recv(1 << 16)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("head", [b"", HEAD])
def test_a_client_that_never_finishes_a_head_is_disconnected(
    server: HttpServer, head: bytes
) -> None:
    with connect(server) as client:
        client.sendall(head)
        assert read(client) == b""


def test_a_client_that_never_finishes_its_next_head_is_disconnected(server: HttpServer) -> None:
    with connect(server) as client:
        client.sendall(HEAD + b"\r\n")
        assert read(client).startswith(b"HTTP/1.1 200")
        client.sendall(HEAD)
        assert read(client) == b""


def test_a_client_that_never_finishes_a_body_is_disconnected(server: HttpServer) -> None:
    with connect(server) as client:
        client.sendall(b"POST /slow HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\n123")
        assert read(client).startswith(b"HTTP/1.1 499")
        client.sendall(b"4")
        assert read(client) == b""


DIES = """
from starlette.responses import Response
from agentrl.core.http.server import HttpServer, make_application
server = HttpServer("envs", "127.0.0.1", 0, guarded=False)
server.start(make_application([], lambda status, message: Response(message, status)))
server._uvicorn.server_state = None  # its loop looks at it every 0.1 s
server._thread.join()
print("still here")
"""


def test_a_process_whose_http_thread_dies_ends() -> None:
    command = [sys.executable, "-c", DIES]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == EXIT_SOFTWARE
    assert "Required thread died" in ended.stdout + ended.stderr
    assert "still here" not in ended.stdout


def test_connections_beyond_the_limit_are_closed_until_others_have_ended(
    server: HttpServer,
) -> None:
    def answers() -> bool:
        with connect(server) as client:
            client.sendall(HEAD + b"\r\n")
            return read(client).startswith(b"HTTP/1.1 200")

    with ExitStack() as stack:
        hanging = [stack.enter_context(connect(server)) for _ in range(3)]
        assert answers() is False
        assert [read(each) for each in hanging] == [b""] * 3, "their time has passed"
    eventually(answers, within_s=60, text=lambda: "the server refuses everybody")
