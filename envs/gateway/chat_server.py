"""The HTTP server for agent programs, one per process: a program's token identifies its episode.

POST, path of an API ─▶ token ─▶ EpisodeLine ─ PendingRequest ─▶ the episode's thread
                     ◀──────────────── body ◀─ answer ──────────┘
"""

import asyncio
import functools
import hashlib
import secrets
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrl.core.http.server import HttpServer, make_application, read_body, wait_disconnected
from agentrl.envs.gateway import anthropic, chat, responses
from agentrl.envs.gateway.dialogue import Dialogue, Placement, Reply
from agentrl.envs.gateway.messages import (
    MODEL,
    DialogueReply,
    DialogueRequest,
    DialogueTurn,
    RequestRefused,
)
from agentrl.envs.gateway.process import ProgramEnd
from agentrl.envs.gateway.request_fields import MAX_BODY

HOST = "127.0.0.1"
RETRIES = "x-stainless-retry-count"  # header of the vendors' packages
ERROR_TYPES = {  # by status; others are invalid_request_error
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "server_error",
}


class ModelApi(Protocol):
    """One API: a file of pure functions."""

    PATH: str

    def read(self, body: bytes) -> DialogueRequest:
        """Parse a request. Raises RequestRefused."""

    def answer(self, reply: DialogueReply) -> bytes:
        """Return the body of a reply."""


APIS: tuple[ModelApi, ...] = (chat, responses, anthropic)


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that waits for its answer.

    `turns`: sampled so far. `waiting`: connected clients. `passed_over`: nobody waited when its
    turn came. `delivered`: a client received the answer.
    """

    api: ModelApi
    request: DialogueRequest
    placement: Placement
    turns: tuple[DialogueTurn, ...] = ()
    reply: "Future[Response]" = field(default_factory=Future)
    waiting: int = 1
    passed_over: bool = False
    delivered: bool = False


class EpisodeLine:
    """Connects the server and one episode."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self.refused = ""  # why the last request was
        self._events: SimpleQueue[PendingRequest | ProgramEnd] = SimpleQueue()
        self._dialogue = Dialogue()
        self._lock = threading.Lock()
        self._pending: dict[bytes, PendingRequest] = {}  # the latest one with each body
        self._end: ProgramEnd | None = None
        self._over = False

    def ask(self, api: ModelApi, body: bytes, *, retry: bool) -> PendingRequest:
        """Accept a request: a new one, or an earlier one again, whose turn is sampled once.

        It is an earlier one if the client says so (`retry`), or if it disconnected before the
        answer. Raises RequestRefused.
        """
        key = hashlib.sha256(api.PATH.encode() + body).digest()
        with self._lock:
            if self._over:
                raise RequestRefused("messages", "the episode is over")
            pending = self._pending.get(key)
            if pending is not None and (retry or not (pending.waiting or pending.delivered)):
                pending.waiting += 1
                if pending.passed_over:
                    pending.passed_over = False
                    self._events.put(pending)
                return pending
            try:
                request = api.read(body)
                pending = PendingRequest(api, request, self._dialogue.place(request))
            except RequestRefused as error:
                self.refused = str(error)
                raise
            self._pending[key] = pending
            self._events.put(pending)
            return pending

    def leave(self, pending: PendingRequest, *, delivered: bool) -> None:
        """Handle a client that received its answer, or disconnected before."""
        with self._lock:
            pending.waiting -= 1
            pending.delivered |= delivered

    def end(self, end: ProgramEnd) -> None:
        """Handle the end of the program."""
        self._end = end
        self._events.put(end)

    def next_event(self, timeout_s: float) -> PendingRequest | ProgramEnd:
        """Wait for the next request that somebody waits for, or the program's end. Raises Empty."""
        deadline = time.monotonic() + timeout_s
        while True:
            event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            if self._end is not None:
                return self._end
            if isinstance(event, ProgramEnd):
                return event
            with self._lock:
                event.passed_over = not event.waiting
            if not event.passed_over:
                return event

    def add_reply(self, number: int, turn: int, pending: PendingRequest) -> None:
        """Add the latest turn of a request. `turn`: its number among the policy's turns."""
        message, tools = pending.turns[-1].message, pending.request.tools
        with self._lock:
            self._dialogue.add_reply(number, turn, pending.placement, tools, message)

    def last_replies(self) -> list[Reply]:
        """Return the last reply of each of the program's conversations, in order."""
        with self._lock:
            return self._dialogue.last_replies()

    def close(self) -> None:
        """Close the line; requests get no answers any more."""
        with self._lock:
            self._over = True
            for pending in self._pending.values():
                pending.reply.cancel()


class ChatServer:
    """The server and its lines, used until the process ends."""

    def __init__(self) -> None:
        """Bind and answer requests. Raises ConfigError."""
        self._lines: dict[str, EpisodeLine] = {}
        self._http = HttpServer("gateway", HOST, 0, guarded=True)
        self.url = self._http.url
        routes = [
            Route(api.PATH, functools.partial(self._ask, api), methods=["POST"]) for api in APIS
        ]
        routes.append(Route("/v1/models", self._models))
        self._http.start(make_application(routes, error_response))

    def open(self, line: EpisodeLine) -> None:
        self._lines[line.token] = line

    def close(self, line: EpisodeLine) -> None:
        self._lines.pop(line.token, None)
        line.close()

    async def _ask(self, api: ModelApi, request: Request) -> Response:
        line = self._line(request)
        if line is None:
            return error_response(401, "the key is of no episode that runs")
        body = await read_body(request, MAX_BODY)
        if body is None:
            return error_response(413, f"the body exceeds {MAX_BODY} bytes")
        try:
            pending = line.ask(api, body, retry=request.headers.get(RETRIES, "0") != "0")
        except RequestRefused as error:
            return error_response(400, str(error), error.field)
        leaving = asyncio.ensure_future(wait_disconnected(request))
        reply = asyncio.wrap_future(pending.reply)
        delivered = False
        try:
            await asyncio.wait((reply, leaving), return_when=asyncio.FIRST_COMPLETED)
            if reply.cancelled():
                return error_response(400, "the episode is over")
            delivered = reply.done() and not leaving.done()
            return reply.result() if delivered else error_response(400, "the client left")
        finally:
            leaving.cancel()
            line.leave(pending, delivered=delivered)

    async def _models(self, request: Request) -> Response:
        if self._line(request) is None:
            return error_response(401, "the key is of no episode that runs")
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "agentrl"}
        model |= {"type": "model", "display_name": MODEL, "created_at": "1970-01-01T00:00:00Z"}
        ends = {"first_id": MODEL, "last_id": MODEL, "has_more": False}
        return json_response(200, {"object": "list", "data": [model]} | ends)

    def _line(self, request: Request) -> EpisodeLine | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        key = token if scheme == "Bearer" else request.headers.get("x-api-key", "")
        return self._lines.get(key)


_STARTING = threading.Lock()


def chat_server() -> ChatServer:
    """Return the process's hub. Raises ConfigError."""
    with _STARTING:
        return _chat_server()


@functools.cache
def _chat_server() -> ChatServer:
    return ChatServer()


def error_response(
    status: int, message: str, param: str | None = None, *, code: str | None = None
) -> Response:
    """Return an error as the packages of both vendors read it."""
    kind = ERROR_TYPES.get(status, "invalid_request_error")
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json_response(status, {"type": "error", "error": error})


def reply_response(api: ModelApi, reply: DialogueReply) -> Response:
    """Return a reply as the program asked for it, streamed or whole."""
    kind = "text/event-stream" if reply.request.stream else "application/json"
    return Response(api.answer(reply), media_type=kind)


def json_response(status: int, value: Any) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
