"""The HTTP server for agent programs, one per process: a program's token identifies its episode.

POST /v1/chat/completions ─▶ token ─▶ Line ─ Asked ─▶ the episode's thread
                          ◀──────── body ◀─ answer ──┘
"""

import asyncio
import functools
import secrets
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrl.core.http import HttpServer, make_application, read_body, wait_disconnected
from agentrl.envs.contract import Message
from agentrl.envs.gateway import chat
from agentrl.envs.gateway.chat import ChatRefused, ChatRequest
from agentrl.envs.gateway.dialogue import Dialogue
from agentrl.envs.gateway.process import ProgramEnd

HOST = "127.0.0.1"


@dataclass(slots=True)
class PendingRequest:
    """A request that waits for its answer. `body`: unchanged. `waiting`: connected clients."""

    request: ChatRequest
    new: tuple[Message, ...]
    body: bytes
    reply: "Future[Response]" = field(default_factory=Future)
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class BrokenDialogue:
    """The program's request cannot be recorded, so the episode is over."""

    why: str


class EpisodeLine:
    """Connects the server and one episode."""

    def __init__(self) -> None:
        self.events: SimpleQueue[PendingRequest | BrokenDialogue | ProgramEnd] = SimpleQueue()
        self.dialogue = Dialogue()
        self.token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._last: PendingRequest | None = None
        self._over = False

    def ask(self, body: bytes) -> PendingRequest:
        """Accept a new request, or the last one again if its client disconnected before the answer.

        Raises Refused.
        """
        with self._lock:
            last = self._last
            if last is not None and last.body == body and not last.waiting:
                last.waiting = 1
                return last
            request = chat.read(body)
            try:
                self._check(last)
                asked = PendingRequest(request, self.dialogue.extend(request), body, waiting=1)
            except ChatRefused as error:
                self._over = True
                self.events.put(BrokenDialogue(str(error)))
                raise
            self._last = asked
            self.events.put(asked)
            return asked

    def left(self, asked: PendingRequest) -> None:
        """Handle a client that disconnected before its answer."""
        with self._lock:
            asked.waiting = 0

    def close(self) -> None:
        """Close the line; requests get no answers any more."""
        with self._lock:
            self._over = True
            if self._last is not None:
                self._last.reply.cancel()

    def _check(self, last: PendingRequest | None) -> None:
        if self._over:
            raise ChatRefused("messages", "the episode is over")
        if last is not None and not last.reply.done():
            raise ChatRefused("messages", "another request of the episode waits for its answer")


class ChatServer:
    """The server and its lines, used until the process ends."""

    def __init__(self) -> None:
        """Bind and answer requests. Raises ConfigError."""
        self._lines: dict[str, EpisodeLine] = {}
        self._http = HttpServer("gateway", HOST, 0, guarded=True)
        self.url = f"{self._http.url}/v1"
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/models", self._models),
        ]
        self._http.start(make_application(routes, _fault))

    def open(self, line: EpisodeLine) -> None:
        self._lines[line.token] = line

    def close(self, line: EpisodeLine) -> None:
        self._lines.pop(line.token, None)
        line.close()

    async def _chat(self, request: Request) -> Response:
        line = self._line(request)
        if line is None:
            return _fault(401, "the key is of no episode that runs")
        body = await read_body(request, chat.MAX_BODY)
        if body is None:
            return _fault(413, f"the body exceeds {chat.MAX_BODY} bytes")
        try:
            asked = line.ask(body)
        except ChatRefused as error:
            return _fault(400, str(error), error.field)
        leaving = asyncio.ensure_future(wait_disconnected(request))
        reply = asyncio.wrap_future(asked.reply)
        try:
            await asyncio.wait((reply, leaving), return_when=asyncio.FIRST_COMPLETED)
            if reply.cancelled():
                return _fault(400, "the episode is over")
            if reply.done() and not leaving.done():
                return reply.result()
        finally:
            leaving.cancel()
        line.left(asked)
        return _fault(400, "the client left")

    async def _models(self, request: Request) -> Response:
        if self._line(request) is None:
            return _fault(401, "the key is of no episode that runs")
        model = {"id": chat.MODEL, "object": "model", "created": 0, "owned_by": "agentrl"}
        return _json(200, {"object": "list", "data": [model]})

    def _line(self, request: Request) -> EpisodeLine | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return self._lines.get(token) if scheme == "Bearer" else None


_STARTING = threading.Lock()


def chat_server() -> ChatServer:
    """Return the process's hub. Raises ConfigError."""
    with _STARTING:
        return _chat_server()


@functools.cache
def _chat_server() -> ChatServer:
    return ChatServer()


def _fault(status: int, message: str, param: str | None = None) -> Response:
    kind = "invalid_request_error"
    error = {"message": message, "type": kind, "param": param, "code": None}
    return _json(status, {"error": error})


def _json(status: int, value: Any) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
