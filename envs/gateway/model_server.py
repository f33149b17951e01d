"""An HTTP server of OpenAI's Chat Completions for one model, for programs of other people.

    POST /v1/chat/completions ─▶ token, size, fields, model ─▶ Sampler ─▶ body

`chat_server.py` serves the programs of episodes; this one knows no episode.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrl.core.errors import PolicyError
from agentrl.core.http.access import admits
from agentrl.core.http.server import HttpServer, make_application, read_body, wait_disconnected
from agentrl.envs.gateway import chat
from agentrl.envs.gateway.chat_server import error_response, json_response, reply_response
from agentrl.envs.gateway.messages import DialogueReply, DialogueRequest, RequestRefused
from agentrl.envs.gateway.request_fields import MAX_BODY

Sampler = Callable[[DialogueRequest], Awaitable[DialogueReply]]
Handler = Callable[[Request], Awaitable[Response]]


MOST_CONNECTIONS = 256
MOST_WAITING = 1024  # turns that are being sampled


@dataclass(frozen=True, slots=True)
class Address:
    """Where a model is served. `token`: of every request; empty: none is asked for."""

    host: str
    port: int
    token: str = ""


class ModelServer:
    """Serves one model."""

    def __init__(self, address: Address) -> None:
        """Bind the address; requests are answered from `start` on. Raises ConfigError."""
        self._token = address.token
        self._waiting = 0
        self._http = HttpServer(
            "serve", address.host, address.port, guarded=bool(address.token), options=True
        )
        self.url = self._http.url

    def start(self, model: str, sample: Sampler) -> None:
        """Answer requests for `model`. `sample`: raises RequestRefused, PolicyError.

        Raises ConfigError.
        """
        self._model = model
        self._sample = sample
        routes = [
            Route(chat.PATH, self._guard(self._chat), methods=["POST"]),
            Route("/v1/models", self._guard(self._models)),
        ]
        application = make_application(routes, error_response)
        self._http.start(application, connections=MOST_CONNECTIONS)

    def close(self) -> None:
        """Finish running requests for about a second, and release the port."""
        self._http.close()

    def _guard(self, handler: Handler) -> Handler:
        async def check_token(request: Request) -> Response:
            if admits(self._token, request.headers.get("authorization", "")):
                return await handler(request)
            text = "the bearer token is missing or wrong"
            return error_response(401, text, code="invalid_api_key")

        return check_token

    async def _chat(self, http: Request) -> Response:
        body = await read_body(http, MAX_BODY)
        if body is None:
            return error_response(413, f"the body exceeds {MAX_BODY} bytes")
        try:
            request = chat.read(body)
            if request.model != self._model:
                text = f"model {request.model[:80]!r} is not served here, only {self._model}"
                return error_response(404, text, "model", code="model_not_found")
            return await self._answer(http, request)
        except RequestRefused as error:
            return error_response(400, str(error), error.field, code=error.code)
        except PolicyError as error:
            return error_response(503, str(error), code="policy_failed")

    async def _answer(self, http: Request, request: DialogueRequest) -> Response:
        """Sample the turns of a request, unless too many wait."""
        if self._waiting + request.count > MOST_WAITING:
            text = f"{self._waiting} turns wait already, the limit is {MOST_WAITING}"
            return error_response(429, text, code="rate_limit_exceeded")
        self._waiting += request.count
        try:
            reply = await _unless_left(http, self._sample(request))
        finally:
            self._waiting -= request.count
        if reply is None:
            return Response(status_code=499)
        return reply_response(chat, reply)

    async def _models(self, _: Request) -> Response:
        model: dict[str, Any] = {"id": self._model, "object": "model"}
        model |= {"created": 0, "owned_by": "agentrl"}
        return json_response(200, {"object": "list", "data": [model]})


async def _unless_left(http: Request, sampling: Awaitable[DialogueReply]) -> DialogueReply | None:
    """Return what is sampled; None for a client that left, whose sampling is then cancelled."""
    turn = asyncio.ensure_future(sampling)
    leaving = asyncio.ensure_future(wait_disconnected(http))
    try:
        await asyncio.wait((turn, leaving), return_when=asyncio.FIRST_COMPLETED)
        return turn.result() if turn.done() else None
    finally:
        turn.cancel()
        leaving.cancel()
