"""The HTTP application of the policy server: `/v1/completions`, `/v1/models`, `/health`.

    HTTP ─▶ token, size, JSON, fields ─▶ ServedCheckpoints.request(checkpoint) ─▶ Engine.submit ─▶
    answer

Refusals have OpenAI's error body: 400 names the field, 401 a wrong token, 404 `model_not_found`,
413 the size, 503 a failed engine. If a client disconnects, its sampling stops (499).
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agentrl.core.errors import PolicyError
from agentrl.core.http.access import admits
from agentrl.core.http.server import HttpServer, make_application, read_body, wait_disconnected
from agentrl.core.telemetry import metrics, tracing
from agentrl.serving import wire
from agentrl.serving.engine_api import Engine, RequestError
from agentrl.serving.served_checkpoints import NotServedError, ServedCheckpoints

Handler = Callable[[HttpRequest], Awaitable[Response]]


class PolicyApp:
    """The request handlers of one engine."""

    def __init__(self, engine: Engine, served: ServedCheckpoints, token: str) -> None:
        self._engine = engine
        self._served = served
        self._token = token
        self._numbers = itertools.count(1)
        self._sampled_tokens = 0  # since the start

    def application(self) -> ASGIApp:
        routes = [
            Route(
                "/v1/completions",
                measure_completions(guard(self._token, self._completions)),
                methods=["POST"],
            ),
            Route("/v1/models", guard(self._token, self._models)),
            Route("/health", guard(self._token, self._health)),
        ]
        return make_application(routes, fault)

    async def _completions(self, request: HttpRequest) -> Response:
        body = await read_body(request, wire.MAX_BODY)
        if body is None:
            return fault(413, f"the body exceeds {wire.MAX_BODY} bytes", param="body")
        try:
            return await self._complete(wire.decode(body), request)
        except RequestError as error:
            return fault(400, str(error), param=error.field)
        except NotServedError as error:
            return fault(404, str(error), param="model", code="model_not_found")
        except PolicyError as error:
            return fault(503, str(error), code="policy_failed")

    async def _complete(self, body: wire.CompletionBody, http: HttpRequest) -> Response:
        with self._served.request(body.model):
            sampling = asyncio.wrap_future(self._engine.submit(body.request()))
            hung_up = asyncio.ensure_future(wait_disconnected(http))
            try:
                await asyncio.wait((sampling, hung_up), return_when=asyncio.FIRST_COMPLETED)
                if not sampling.done():
                    return fault(499, "the client hung up")
                completion = sampling.result()
            finally:
                sampling.cancel()
                hung_up.cancel()
            if not completion.token_ids:
                raise PolicyError(f"checkpoint {body.model} was replaced before the first token")
        metrics.TOKENS.labels(kind="read").inc(len(body.prompt))
        metrics.TOKENS.labels(kind="sampled").inc(len(completion.token_ids))
        self._sampled_tokens += len(completion.token_ids)
        return json_response(200, wire.encode(next(self._numbers), body, completion))

    async def _models(self, _: HttpRequest) -> Response:
        entries = [{"id": name, "object": "model"} for name in self._served.checkpoints()]
        return json_response(200, msgspec.json.encode({"object": "list", "data": entries}))

    async def _health(self, _: HttpRequest) -> Response:
        tracks = self._served.tracks()
        alive = self._engine.alive()
        problem = self._served.problem
        health = {
            "ready": alive and bool(tracks),
            "served": tracks,
            "problem": problem,
            "sampled_tokens": self._sampled_tokens,
        }
        body = msgspec.json.encode(health)
        return json_response(200 if alive else 503, body)


class Server(HttpServer):
    """Serves the application on a socket."""

    def __init__(self, app: PolicyApp, host: str, port: int, *, guarded: bool) -> None:
        """Bind and start. Raises ConfigError, like `HttpServer`."""
        super().__init__("policy", host, port, guarded=guarded)
        self.start(app.application())


def guard(token: str, handler: Handler) -> Handler:
    """Refuse requests without the token."""

    async def handle(request: HttpRequest) -> Response:
        if not admits(token, request.headers.get("authorization", "")):
            return fault(401, "the bearer token is missing or wrong", code="invalid_api_key")
        return await handler(request)

    return handle


def measure_completions(handler: Handler) -> Handler:
    """Count and time the requests of a handler."""

    async def measured(request: HttpRequest) -> Response:
        began = time.perf_counter()
        with tracing.continue_trace("completion", request.headers.get("traceparent")) as fields:
            response = await handler(request)
            fields["status"] = response.status_code
        metrics.REQUESTS.labels(status=str(response.status_code)).inc()
        metrics.REQUEST.observe(time.perf_counter() - began)
        return response

    return measured


def fault(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> Response:
    """Create a response with OpenAI's error body."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = wire.ErrorBody(message, kind, param, code)
    return json_response(status, msgspec.json.encode({"error": error}))


def json_response(status: int, content: bytes) -> Response:
    return Response(content, status, media_type="application/json")
