"""The HTTP application of the env server: AgentRL's task worker protocol, one set of paths per
task.

    HTTP ─▶ token, size, JSON, fields ─▶ Sessions

Tasks are served under /<task>/api; a single task is also served under /api. Refusals are
`{"detail": …}`: 400 session or item, 401 token, 403 a web page, 404 and 405 path, 406 full, 409
another attempt, 413 size, 415 no JSON, 422 names the field, 431 head, 503 end. The whole protocol:
docs/env-server.md.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agentrl.core.errors import AgentRLError, ItemError, in_words
from agentrl.core.http.access import admits, is_loopback
from agentrl.core.http.server import make_application, read_body, wait_disconnected
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics, tracing
from agentrl.envs.contract import Item, TaskSource
from agentrl.envs.sandbox.container_owner import ContainerOwner
from agentrl.envs.server import wire
from agentrl.envs.server.controller_heartbeats import Controller
from agentrl.envs.server.session import Caller, Refused
from agentrl.envs.server.sessions import Sessions

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]
Of = Callable[[str, Request], Awaitable[Response]]

JSON = "application/json"

log = get_logger()


@dataclass(frozen=True, slots=True)
class HostedTask:
    """A task on this server. `max_turns`: for clients that do not count turns themselves."""

    source: TaskSource
    max_turns: int


class EnvApp:
    """The HTTP handlers.

    `token`: empty: none is required. `tend`: called every second; may block.
    """

    def __init__(
        self,
        hosted: Mapping[str, HostedTask],
        sessions: Sessions,
        token: str,
        controller: Controller,
        tend: Callable[[], None],
    ) -> None:
        self._hosted = hosted
        self._sessions = sessions
        self._token = token
        self._controller = controller
        self._tend = tend

    def application(self) -> ASGIApp:
        handlers: Mapping[str, Of] = {
            "POST interact": self._interact,  # the most frequent first: routes are tried in order
            "POST start_sample": self._start,
            "POST cancel": self._cancel,
            "POST cancel_with_notice": self._cancel_with_notice,
            "POST cancel_all": self._cancel_all,
            "POST cancel_all_with_notice": self._cancel_all_with_notice,
            "GET get_indices": self._indices,
            "GET worker_status": self._status,
            "GET get_sessions": self._running,
        }
        places = {f"/{task}/api": task for task in self._hosted}
        if len(self._hosted) == 1:
            places["/api"] = next(iter(self._hosted))
        routes = [
            Route(
                f"{under}/{verb.split()[1]}",
                _measure(task, self._guard(partial(handler, task))),
                methods=[verb.split()[0]],
            )
            for verb, handler in handlers.items()
            for under, task in places.items()
        ]
        return make_application(routes, _fault, self._alive)

    def _guard(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            if refused := refusal(self._token, request):
                return refused
            try:
                return await handler(request)
            except Refused as error:
                return _fault(error.code, str(error))
            except wire.MalformedBody as error:
                return _fault(422, str(error))

        return guarded

    async def _start(self, task: str, request: Request) -> Response:
        body = await _body(request, wire.StartSample)
        if body.index == -1 and body.custom_task is None:
            missing = "missing: an item's id or its place in get_indices; -1 needs custom_task"
            raise Refused(422, f"index is {missing} - at `$.index`")
        source = self._hosted[task].source
        answer, applied = await self._sessions.start(
            (task, body.session_id),
            body.index,
            lambda: source.make(find(source, body)),
            repeatable=_number(request, wire.TURN) == 0,
            caller=Caller(
                partial(wait_disconnected, request),
                ContainerOwner.parse(request.headers.get(wire.OWNER, "")),
                _number(request, wire.FENCE),
            ),
        )
        return _json(200, answer, {wire.SESSION: str(body.session_id), wire.TURN: str(applied)})

    async def _interact(self, task: str, request: Request) -> Response:
        body = await _body(request, wire.Interact)
        turn, fence = _number(request, wire.TURN), _number(request, wire.FENCE)
        if turn == 0:
            raise Refused(422, f"{wire.TURN}: a session's first turn is 1")
        max_turns = self._hosted[task].max_turns
        key = (task, body.session_id)
        answer = await self._sessions.interact(key, body.messages[-1], turn, max_turns, fence)
        return _json(200, {wire.SESSION: body.session_id, "env_out": answer})

    async def _cancel(self, task: str, request: Request) -> Response:
        body = await _body(request, wire.Cancel)
        await self._sessions.cancel((task, body.session_id), _number(request, wire.FENCE))
        return _json(200, {wire.SESSION: body.session_id})

    async def _cancel_with_notice(self, task: str, request: Request) -> Response:
        body = await _body(request, wire.Cancel)
        ended = self._sessions.wait_idle((task, body.session_id), _number(request, wire.FENCE))
        self._controller.notify(body.session_id, ended)
        return _json(200, {wire.SESSION: body.session_id})

    async def _cancel_all(self, task: str, _: Request) -> Response:
        await self._sessions.cancel_all(task)
        return _json(200, None)

    async def _cancel_all_with_notice(self, task: str, _: Request) -> Response:
        for session_id in self._sessions.running(task):
            self._controller.notify(session_id, self._sessions.wait_idle((task, session_id)))
        return _json(200, None)

    async def _indices(self, task: str, _: Request) -> Response:
        source = self._hosted[task].source
        try:
            return _json(200, await self._sessions.threads.run(partial(indices, source)))
        except AgentRLError as error:  # its items cannot be made
            raise Refused(400, str(error)) from error

    async def _status(self, _task: str, _: Request) -> Response:
        current = len(self._sessions.running())
        return _json(200, {"concurrency": self._sessions.concurrency, "current": current})

    async def _running(self, task: str, _: Request) -> Response:
        return _json(200, self._sessions.running(task))

    @contextlib.asynccontextmanager
    async def _alive(self, _: Starlette) -> AsyncIterator[None]:
        keep = keep_tending(self._hosted, self._sessions, self._tend)
        chores = [asyncio.create_task(keep)]
        for task, hosted in self._hosted.items():
            beat = self._controller.beat(task, partial(indices, hosted.source))
            chores.append(asyncio.create_task(beat))
        try:
            yield
        finally:
            for chore in chores:
                chore.cancel()
            await self._sessions.close()


async def keep_tending(
    hosted: Collection[str], sessions: Sessions, tend: Callable[[], None]
) -> None:
    """Cancel idle sessions, and maintain the sandboxes, until cancelled."""
    while True:
        try:
            await sessions.tend()
            for task in hosted:
                metrics.SESSIONS.labels(task=task).set(len(sessions.running(task)))
            await sessions.threads.run(tend)
        except Exception as error:  # without maintenance no place is ever freed again
            is_known = isinstance(error, AgentRLError | OSError)
            log.warning("Maintenance failed", error=in_words(error), exc_info=not is_known)
        await asyncio.sleep(sessions.timings.tend_s)


def refusal(token: str, request: HTTPConnection) -> Response | None:
    """Return the refusal of a request without the token, or, where there is none, of a web page."""
    if not token:
        return _of_a_page(request)
    if admits(token, request.headers.get("authorization", "")):
        return None
    return _fault(401, "the bearer token is missing or wrong")


def _of_a_page(request: HTTPConnection) -> Response | None:
    """Return the refusal of a request that may come from a web page, or None.

    A page can reach loopback, even by a name of its own; its requests without preflight have no
    JSON content type, and they have an Origin.
    """
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if not is_loopback(_hostname(f"//{host}")):
        return _fault(403, f"host {host[:60]}: without a token only this machine may send requests")
    if origin is not None and not is_loopback(_hostname(origin)):
        return _fault(
            403, f"origin {origin[:60]}: requests from web pages of other hosts are refused"
        )
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    return None if kind == JSON else _fault(415, f"content-type {kind[:60]}: not {JSON}")


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _measure(task: str, handler: Handler) -> Handler:
    async def measured(request: Request) -> Response:
        began = time.perf_counter()
        with tracing.continue_trace("session", request.headers.get("traceparent")) as fields:
            response = await handler(request)
            fields |= {"task": task, "status": response.status_code}
        metrics.ENV_REQUESTS.labels(task=task, status=str(response.status_code)).inc()
        metrics.ENV_REQUEST.labels(task=task).observe(time.perf_counter() - began)
        return response

    return measured


def find(source: TaskSource, body: wire.StartSample) -> Item:
    """Find the item in a start request. Raises ItemError."""
    if body.custom_task is not None:
        return Item(source.name, str(body.index), body.custom_task)
    items = [item for split in source.splits for item in source.items(split)]
    if isinstance(body.index, int) and 0 <= body.index < len(items):
        return items[body.index]
    for item in items:
        if item.item_id == body.index:
            return item
    raise ItemError(f"{source.name}: no item has the index {body.index}")


def indices(source: TaskSource) -> list[str]:
    return [item.item_id for split in source.splits for item in source.items(split)]


def _number(request: Request, header: str) -> int | None:
    """Return the number in a header, if there is one. Raises Refused."""
    text = request.headers.get(header)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Refused(422, f"{header}: {text[:20]!r} is not a number")
    return int(text)


async def _body(request: Request, kind: type[T]) -> T:
    """Decode the body as a `kind`. Raises Refused, MalformedBody."""
    given = await read_body(request, wire.MAX_BODY)
    if given is None:
        raise Refused(413, f"the body exceeds {wire.MAX_BODY} bytes")
    return wire.decode(given, kind)


def _fault(code: int, detail: str) -> Response:
    return _json(code, {"detail": detail}, {wire.TURN: "0"})


def _json(code: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(wire.encode(value), code, headers, media_type=JSON)
