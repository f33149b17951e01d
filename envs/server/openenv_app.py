"""Our tasks on the routes of an OpenEnv server (openenv.core 0.10), for its clients.

    WebSocket /ws ─▶ reset, step, state, mcp ─▶ OpenEnvPlay ─▶ Sessions
    POST /mcp     ─▶ a session, which a WebSocket may join
    GET, POST     ─▶ splits and tasks

A single task is served at /, each of several under /TASK.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentrl.core.errors import AgentRLError
from agentrl.core.http.server import make_application, read_body
from agentrl.envs.contract import Item
from agentrl.envs.server import wire
from agentrl.envs.server.app import HostedTask, keep_tending, refusal
from agentrl.envs.server.openenv_play import OpenEnvPlay, ProtocolError
from agentrl.envs.server.sessions import Sessions

INVALID_PARAMS, NO_METHOD, SERVER_ERROR = -32602, -32601, -32000
TEXT, NUMBER, ANY = {"type": "string"}, {"type": "integer"}, {"type": "object"}
SCHEMA: Mapping[str, Any] = {
    "action": {
        "title": "CallToolAction",
        "type": "object",
        "properties": {
            "type": {"const": "call_tool", "default": "call_tool", "type": "string"},
            "tool_name": TEXT,
            "arguments": ANY,
        },
        "required": ["tool_name"],
    },
    "observation": {"type": "object", "properties": {"tool_name": TEXT, "result": {}}},
    "state": {"type": "object", "properties": {"episode_id": TEXT, "step_count": NUMBER}},
}


class SocketMessage(msgspec.Struct):
    """A message of a client."""

    type: str
    data: dict[str, Any] = {}


class RpcRequest(msgspec.Struct):
    """A request of `/mcp`."""

    method: str
    params: dict[str, Any] = {}
    id: str | int | None = None


class TaskQuestion(msgspec.Struct):
    """A question about tasks."""

    split: str
    index: int = 0
    start: int | None = None
    stop: int | None = None


class OpenEnvApp:
    """The ASGI application. `token`: empty: none is required. `tend`: called every second."""

    def __init__(
        self,
        hosted: Mapping[str, HostedTask],
        sessions: Sessions,
        token: str,
        tend: Callable[[], None],
    ) -> None:
        self._hosted, self._sessions, self._token, self._tend = hosted, sessions, token, tend
        served = {name: ServedTask(name, each, sessions).routes() for name, each in hosted.items()}
        routes: list[BaseRoute] = [Mount(f"/{name}", routes=each) for name, each in served.items()]
        if len(served) == 1:
            [alone] = served.values()
            routes = alone
        self._app = make_application(routes, _fault, self._alive)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        served: ASGIApp = self._app
        if scope["type"] != "lifespan":
            served = refusal(self._token, HTTPConnection(scope)) or served
        await served(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _alive(self, _: Starlette) -> AsyncIterator[None]:
        chore = asyncio.create_task(keep_tending(self._hosted, self._sessions, self._tend))
        try:
            yield
        finally:
            chore.cancel()
            await self._sessions.close()


class ServedTask:
    """One task's routes. Used on the event loop's thread only."""

    def __init__(self, name: str, hosted: HostedTask, sessions: Sessions) -> None:
        self._name, self._hosted, self._sessions = name, hosted, sessions
        self._joinable: dict[str, OpenEnvPlay] = {}  # by the session that POST /mcp made

    def routes(self) -> list[BaseRoute]:
        about = {"name": self._name, "description": f"AgentRL's task {self._name}"}
        fixed = {"/health": {"status": "healthy"}, "/schema": SCHEMA, "/metadata": about}
        fixed["/list_environments"] = [self._name]  # type: ignore[assignment]
        return [
            *(Route(path, partial(_fixed, value)) for path, value in fixed.items()),
            Route(f"/{self._name}/splits", self._splits),
            Route(f"/{self._name}/{{question}}", self._tasks, methods=["POST"]),
            Route("/mcp", self._post_mcp, methods=["POST"]),
            WebSocketRoute("/ws", self._socket),
        ]

    async def _splits(self, _: Request) -> Response:
        known = ("train", "validation", "test")
        try:
            splits = await self._sessions.threads.run(lambda: self._hosted.source.splits)
        except AgentRLError as error:
            return _fault(400, str(error))
        kinds = [{"name": each, "type": each if each in known else known[1]} for each in splits]
        return _json(kinds)

    async def _tasks(self, request: Request) -> Response:
        """Answer the questions of the task API."""
        body = await read_body(request, wire.MAX_BODY)
        if body is None:
            return _too_large()
        try:
            question = wire.decode(body, TaskQuestion)
            items = partial(self._hosted.source.items, question.split)
            tasks = [_task(each) for each in await self._sessions.threads.run(items)]
            answers: Mapping[str, Callable[[], Any]] = {
                "num_tasks": lambda: {"num_tasks": len(tasks)},
                "tasks": lambda: {"tasks": tasks, "env_name": self._name},
                "task": lambda: {"task": tasks[question.index]},
                "task_range": lambda: {"tasks": tasks[question.start : question.stop]},
            }
            answer = answers.get(request.path_params["question"])
            return _json(answer()) if answer else _fault(404, "Not Found")
        except (wire.MalformedBody, AgentRLError, IndexError) as error:
            return _fault(400, str(error))

    async def _socket(self, socket: WebSocket) -> None:
        """One client: its messages, answered in their order."""
        await socket.accept()
        named = socket.query_params.get("session_id")
        play = self._joinable.get(named) if named else self._play()
        try:
            while play is not None:
                reply = await self._answer(play, await _received_text(socket))
                if reply is None:
                    break
                await socket.send_text(wire.encode(reply).decode())
            else:
                unknown = _error("SESSION_ERROR", f"Unknown session_id: {named}")
                await socket.send_text(wire.encode(unknown).decode())
            await socket.close()
        except WebSocketDisconnect:
            pass
        finally:
            if play is not None and not named:
                await play.close()

    async def _answer(self, play: OpenEnvPlay, text: str | None) -> dict[str, Any] | None:
        """Return the reply to a message (None: of bytes); None: the client wants to end."""
        if text is None:
            return _error("INVALID_JSON", "Invalid JSON: a binary message; send text")
        try:
            message = wire.decode(text.encode(errors="surrogatepass"), SocketMessage)
        except wire.MalformedBody as error:
            return _error("INVALID_JSON", f"Invalid JSON: {error}")
        if message.type == "close":
            return None
        try:
            kind, data = await self._apply(play, message)
        except ProtocolError as error:
            return _error(error.code, str(error))
        return {"type": kind, "data": data}

    async def _apply(
        self, play: OpenEnvPlay, message: SocketMessage
    ) -> tuple[str, Mapping[str, Any]]:
        """Return the kind of a reply and its data. Raises ProtocolError."""
        match message.type:
            case "reset":
                return "observation", await play.reset(message.data)
            case "step":
                return "observation", await play.step(message.data)
            case "state":
                return "state", play.state()
            case "mcp":
                return "mcp", await self._rpc(message.data, play)
        raise ProtocolError("UNKNOWN_TYPE", f"Unknown message type: {message.type[:40]}")

    async def _post_mcp(self, request: Request) -> Response:
        body = await read_body(request, wire.MAX_BODY)
        if body is None:
            return _too_large()
        try:
            fields = wire.decode(body, dict[str, Any])
        except wire.MalformedBody as error:
            return _json(_rpc_error(None, -32700, str(error)))
        return _json(await self._rpc(fields, None))

    async def _rpc(self, fields: Mapping[str, Any], play: OpenEnvPlay | None) -> dict[str, Any]:
        """Answer JSON-RPC. `play`: of a WebSocket; else the request names its session."""
        try:
            request = msgspec.convert(fields, RpcRequest)
        except msgspec.ValidationError as error:
            return _rpc_error(None, -32600, str(error))
        if request.method == "openenv/session/create":
            return self._create(request)
        session_id = str(request.params.get("session_id", ""))
        play = play or self._joinable.get(session_id)
        if play is None:
            return _rpc_error(request.id, INVALID_PARAMS, f"Unknown session_id: {session_id[:60]}")
        try:
            if request.method == "openenv/session/close":
                self._joinable.pop(session_id, None)
                await play.close()
                result: Any = {"session_id": session_id, "closed": True}
            elif request.method == "tools/list":
                result = {"tools": await play.tools()}
            elif request.method == "tools/call":
                name, arguments = request.params.get("name"), request.params.get("arguments", {})
                step = await play.step({"tool_name": name, "arguments": arguments})
                result = step["observation"]["result"]
            else:
                return _rpc_error(request.id, NO_METHOD, f"Method not found: {request.method[:60]}")
        except ProtocolError as error:
            return _rpc_error(request.id, SERVER_ERROR, str(error))
        return {"jsonrpc": "2.0", "id": request.id, "result": result}

    def _create(self, request: RpcRequest) -> dict[str, Any]:
        """Make a session that a WebSocket may join, in place of the one that rested longest."""
        most = self._sessions.concurrency
        if len(self._joinable) >= most:
            resting = [name for name, each in self._joinable.items() if not each.plays()]
            if not resting:
                return _rpc_error(request.id, SERVER_ERROR, f"Server at capacity: {most} sessions")
            del self._joinable[min(resting, key=lambda name: self._joinable[name].used)]
        session_id = str(uuid.uuid4())
        self._joinable[session_id] = self._play()
        return {"jsonrpc": "2.0", "id": request.id, "result": {"session_id": session_id}}

    def _play(self) -> OpenEnvPlay:
        hosted = self._hosted
        return OpenEnvPlay(self._name, hosted.source, hosted.max_turns, self._sessions)


async def _received_text(socket: WebSocket) -> str | None:
    """Return the next message; None: its bytes are no text. Raises WebSocketDisconnect."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"], message.get("reason"))
    text: str | None = message.get("text")
    return text


def _task(item: Item) -> Mapping[str, str]:
    """What may be known of an item: its content may hold the answer."""
    return {"id": item.item_id}


async def _fixed(value: Any, _: Request) -> Response:
    return _json(value)


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}


def _rpc_error(rpc_id: str | int | None, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": rpc_id, "error": {"code": code, "message": message}}


def _too_large() -> Response:
    return _fault(413, f"the body exceeds {wire.MAX_BODY} bytes")


def _fault(code: int, detail: str) -> Response:
    return _json({"detail": detail}, code)


def _json(value: Any, status: int = 200) -> Response:
    return Response(wire.encode(value), status, media_type="application/json")
