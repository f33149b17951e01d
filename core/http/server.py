"""The common parts of our HTTP servers: socket, thread, bearer token, limits on what clients send.

Only the servers import this module.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentrl.core.errors import ConfigError
from agentrl.core.http.access import name_setting, origin, require_token
from agentrl.core.logging import get_logger
from agentrl.core.prepare_structs import prepare_structs
from agentrl.core.processes.threads import vital_thread

START_S = 10.0
MAX_HEAD = 1 << 16  # bytes of a request beside its body
HEAD_S = 20.0  # in which a client must send a request's head
BODY_S = 60.0  # and its body
MAX_CONNECTIONS = 8192  # of one server at the same time
STOP_S = 1  # of requests that outlast the drain before it

log = get_logger()

Fault = Callable[[int, str], Response]
Lifespan = Callable[[Starlette], contextlib.AbstractAsyncContextManager[None]]


def make_application(
    routes: Sequence[BaseRoute], fault: Fault, lifespan: Lifespan | None = None
) -> ASGIApp:
    """Make an application of exact paths.

    `fault`: creates the response for an unknown path or method, and for too large a head.
    """

    responses = {
        404: fault(404, "Not Found"),
        405: fault(405, "Method Not Allowed"),
        ClientDisconnect: Response(status_code=499),  # nobody reads it
    }
    handlers = {each: partial(_respond, response) for each, response in responses.items()}
    inner = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    inner.router.redirect_slashes = False

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _head(scope) > MAX_HEAD:
            await fault(431, f"the head exceeds {MAX_HEAD} bytes")(scope, receive, send)
        else:
            await inner(scope, receive, send)

    return outer


async def _respond(response: Response, _: Request, __: Exception) -> Response:
    return response


async def wait_disconnected(request: Request) -> None:
    """Wait until the client disconnects. The body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class HttpServer:
    """Serves an ASGI application on a socket, in its own thread, with which the process ends."""

    def __init__(
        self, section: str, host: str, port: int, *, guarded: bool, options: bool = False
    ) -> None:
        """Bind the address. port 0: any free port. guarded: requests need a bearer token.

        `section`: section of the configuration, for errors. `options`: its keys are options of the
        command. Raises ConfigError if the address is not available, or is not loopback and
        unguarded.
        """
        require_token(section, host, guarded=guarded, options=options)
        self._section = section
        self._socket = _listen(section, host, port, name_setting(section, "port", options=options))
        self._uvicorn: uvicorn.Server | None = None
        self.port: int = self._socket.getsockname()[1]
        self.url = origin(host, self.port)

    def start(
        self,
        application: Any,
        *,
        socket_bytes: int = 0,
        connections: int = MAX_CONNECTIONS,
        head_s: float = HEAD_S,
    ) -> None:
        """Start the server. `socket_bytes`: the limit on a WebSocket's message; 0: it serves none.

        `connections`: further ones are closed. `head_s`: seconds in which a client must send a
        request's head. Raises ConfigError.
        """
        prepare_structs()  # before a request can be decoded by each of several threads
        sockets: Literal["websockets-sansio", "none"] = "none"
        if socket_bytes:
            sockets = "websockets-sansio"
        settings = uvicorn.Config(
            application,
            http=cast(Any, partial(BoundedConnection, most=connections, head_s=head_s)),
            log_config=None,
            access_log=False,
            ws=sockets,
            ws_max_size=socket_bytes,
        )
        settings.timeout_graceful_shutdown = STOP_S
        settings.server_header = False
        server = self._uvicorn = uvicorn.Server(settings)

        def serve() -> None:
            try:
                server.run(sockets=[self._socket])
            except BaseException:
                if server.started:
                    raise
                log.exception("Server did not start", url=self.url)

        self._thread = vital_thread("http", serve)
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise ConfigError(
                    f"the {self._section} server on {self.url} did not start",
                    hint="see the error above in its log",
                )
            time.sleep(0.005)

    def close(self) -> None:
        """Finish running requests for at most STOP_S seconds, and release the port."""
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True
            self._thread.join()
        self._socket.close()


async def read_body(request: Request, most: int, within_s: float = BODY_S) -> bytes | None:
    """Return the body; None if it exceeds `most` bytes.

    Raises ClientDisconnect, also for a client that has not sent all of it after `within_s`.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    return None
    except TimeoutError as error:
        raise ClientDisconnect from error
    return bytes(body)


class BoundedConnection(HttpToolsProtocol):
    """A client's connection, closed if it is one too many, or its head is too large or too slow."""

    def __init__(self, *args: Any, most: int, head_s: float, **keywords: Any) -> None:
        """`most`: connections of the server. `head_s`: seconds for a request's head."""
        super().__init__(*args, **keywords)
        self._most, self._head_s = most, head_s
        self._head = 0  # bytes after the first read
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._most:
            transport.abort()
        else:
            self._limit_time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._head -= len(body)
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._head > MAX_HEAD and not self.transport.is_closing():
            self.transport.close()
        if self.transport.get_protocol() is self and self._awaits_head():
            self._limit_time()
        else:  # a request is being answered, or a WebSocket has taken over
            self._stop_timer()

    def _awaits_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _limit_time(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._head_s, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _head(scope: Mapping[str, Any]) -> int:
    """Return the size of a request head in bytes, without a few bytes of its first line."""
    lines = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return lines + len(scope["raw_path"]) + len(scope["query_string"])


def _listen(section: str, host: str, port: int, setting: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"the {section} server cannot listen on {host}:{port}: {why}",
            hint=f"choose another {setting}; each server needs its own",
        ) from error
    # accepted sockets inherit it; asyncio sets it only where the protocol is named: 40 ms a request
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound
