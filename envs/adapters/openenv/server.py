"""An OpenEnv server: its HTTP routes, and a WebSocket session for each episode.

reset ─▶ Step ─▶ step or a tool ─▶ Step … ─▶ state        (openenv.core.env_server.types)
"""

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import urllib3
from urllib3.exceptions import HTTPError
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from agentrl.core.errors import EnvironmentFailure, in_words
from agentrl.core.http.answers import read_answer
from agentrl.core.retry import Backoff, Retry
from agentrl.envs.contract import Tool

T = TypeVar("T")

MAX_ANSWER = 100 << 20  # bytes of a message, as OpenEnv's own client
BUSY = (429, 502, 503, 504)  # of a handshake: another moment
NO_TASKS = (404, 501)  # of the task API
NO_TOOLS = -32603  # JSON-RPC: "Environment does not support MCP"


class Unavailable(EnvironmentFailure):
    """The server is full or cannot be reached for now."""


class ActionRefused(Exception):
    """An action that does not fit the server's schema."""


class Step(msgspec.Struct, frozen=True):
    """The answer to `reset` and `step`."""

    observation: dict[str, Any]
    reward: float | bool | None = None
    done: bool = False


class ServedTool(msgspec.Struct, frozen=True):
    """An entry of `tools/list`; the schema's name depends on the route."""

    name: str
    description: str | None = None
    inputSchema: dict[str, Any] | None = None  # noqa: N815
    input_schema: dict[str, Any] | None = None


class Split(msgspec.Struct, frozen=True):
    """An entry of the task API's splits."""

    name: str


class Answer(msgspec.Struct, frozen=True):
    """A message of the WebSocket."""

    type: str
    data: dict[str, Any] = {}


class Server:
    """A server's address, and how to ask it. Thread-safe."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float, wait_s: float):
        """`timeout_s`: of one answer. `wait_s`: how long to wait for a server that is full or
        away.
        """
        self.url = url.rstrip("/")
        self._headers, self._timeout_s = dict(headers), timeout_s
        self._http = urllib3.PoolManager(retries=False, timeout=timeout_s)
        self._retry = Retry(
            f"openenv {self.url}",
            Unavailable,
            limit_s=wait_s,
            backoff=Backoff(first_s=0.2, longest_s=5.0),
        )

    def name(self) -> str:
        """Return the environment's name. Raises EnvironmentFailure."""
        found = self._get("/list_environments", list[str])
        return found[0] if found else self.url

    def splits(self) -> Mapping[str, int] | None:
        """Return the number of tasks of each split; None for a server without tasks.

        Raises EnvironmentFailure.
        """
        names = self._get("/list_environments", list[str])
        found = self._get(f"/{names[0]}/splits", list[Split]) if names else None
        if names is None or found is None:
            return None
        counts: dict[str, int] = {}
        for split in found:
            body = {"split": split.name}
            count = self._get(f"/{names[0]}/num_tasks", dict[str, int], body)
            counts[split.name] = (count or {}).get("num_tasks", 0)
        return counts

    def action_schema(self) -> Mapping[str, Any]:
        """Return the JSON schema of an action. Raises EnvironmentFailure."""
        found = self._get("/schema", dict[str, dict[str, Any] | None])
        return (found or {}).get("action") or {}

    def open(self, arguments: Mapping[str, Any]) -> tuple["Session", Step]:
        """Open a session and reset its environment; wait for a place. Raises EnvironmentFailure."""

        def attempt() -> tuple[Session, Step]:
            session = self._connect()
            try:
                return session, session.reset(arguments)
            except BaseException:
                session.close()
                raise

        return self._retry.call(attempt)

    def _connect(self) -> "Session":
        parts = urlsplit(self.url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        undo = ExitStack()
        try:
            opening = connect(
                f"{scheme}://{parts.netloc}{parts.path}/ws",
                additional_headers=self._headers,
                max_size=MAX_ANSWER,
                open_timeout=self._timeout_s,
                ping_interval=None,  # an environment may be busy for longer than a ping may take
                proxy=None,
            )
            return Session(undo.enter_context(opening), undo, self.url, self._timeout_s)
        except InvalidStatus as error:
            kind = Unavailable if error.response.status_code in BUSY else EnvironmentFailure
            raise kind(f"openenv {self.url}: {in_words(error)}") from error
        except (OSError, WebSocketException) as error:
            raise Unavailable(f"openenv {self.url}: {in_words(error)}") from error

    def _get(self, path: str, kind: type[T], body: Mapping[str, Any] | None = None) -> T | None:
        """Return a route's answer, None where it is missing. Raises EnvironmentFailure."""

        def attempt() -> T | None:
            method = "GET" if body is None else "POST"
            try:
                answer = self._http.request(
                    method, self.url + path, json=body, headers=self._headers, preload_content=False
                )
                data = read_answer(answer, time.monotonic() + self._timeout_s)
            except HTTPError as error:
                raise Unavailable(f"openenv {self.url}{path}: {in_words(error)}") from error
            if answer.status in NO_TASKS:
                return None
            if answer.status != 200:
                failure = Unavailable if answer.status in BUSY else EnvironmentFailure
                raise failure(f"openenv {self.url}{path}: status {answer.status}")
            try:
                return msgspec.json.decode(data, type=kind)
            except msgspec.MsgspecError as error:
                raise EnvironmentFailure(f"openenv {self.url}{path}: {error}") from error

        return self._retry.call(attempt)


class Session:
    """One environment of the server, for one thread, until `close`.

    `has_failed`: whether the server gave no answer that can be read, or answered a reset, step or
    call with an error of its own.
    """

    def __init__(
        self, socket: ClientConnection, undo: ExitStack, url: str, timeout_s: float
    ) -> None:
        """`undo`: closes the socket."""
        self._socket, self._undo = socket, undo
        self._where, self._timeout_s = f"openenv {url}", timeout_s
        self.has_failed = False

    def reset(self, arguments: Mapping[str, Any]) -> Step:
        """Raises Unavailable where the server is full, EnvironmentFailure."""
        return self._convert(self._ask("reset", arguments), Step)

    def step(self, action: Mapping[str, Any]) -> Step:
        """Raises ActionRefused, EnvironmentFailure."""
        return self._convert(self._ask("step", action), Step)

    def state(self) -> Mapping[str, Any]:
        """Raises EnvironmentFailure."""
        return self._ask("state", None)

    def tools(self) -> tuple[Tool, ...]:
        """Return the environment's tools, none where it has no MCP. Raises EnvironmentFailure."""
        answer = self._call_mcp("tools/list", {})
        if (answer.get("error") or {}).get("code") == NO_TOOLS:
            return ()
        result = self._convert(answer.get("result") or {}, dict[str, list[ServedTool]])
        return tuple(
            Tool(each.name, each.description or "", each.inputSchema or each.input_schema or {})
            for each in result.get("tools", [])
        )

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool outside `step`; its failure is an answer, too. Raises EnvironmentFailure."""
        answer = self._call_mcp("tools/call", {"name": name, "arguments": arguments})
        if error := answer.get("error"):
            return str(error.get("message", error))
        return result_text(answer.get("result"))

    def close(self) -> None:
        """End the session. Safe to call twice."""
        with suppress(OSError, WebSocketException):
            self._socket.send('{"type":"close"}')
        with suppress(OSError, WebSocketException):
            self._undo.close()

    def _call_mcp(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask("mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})

    def _ask(self, kind: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """Send a message and return the answer's data.

        Raises ActionRefused for a step, Unavailable where the server is full, EnvironmentFailure.
        """
        message = {"type": kind} if body is None else {"type": kind, "data": body}
        try:
            with suppress(ConnectionClosed):  # a full server says so before it is asked
                self._socket.send(json.dumps(message))
            received = self._socket.recv(timeout=self._timeout_s)
        except (OSError, WebSocketException) as error:
            self.has_failed = True
            raise EnvironmentFailure(f"{self._where}: {kind}: {in_words(error)}") from error
        try:
            answer = msgspec.json.decode(received, type=Answer)
        except msgspec.MsgspecError as error:
            self.has_failed = True
            raise EnvironmentFailure(f"{self._where}: {kind}: {error}") from error
        if answer.type != "error":
            return answer.data
        code, why = answer.data.get("code"), str(answer.data.get("message"))
        if code == "VALIDATION_ERROR":
            why = _reasons(answer.data) or why
            if kind == "step":
                raise ActionRefused(why)
        self.has_failed |= kind != "state"  # which some servers do not have
        failure = Unavailable if code == "CAPACITY_REACHED" else EnvironmentFailure
        raise failure(f"{self._where}: {kind}: {why}")

    def _convert(self, value: Any, kind: type[T]) -> T:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise EnvironmentFailure(f"{self._where}: ill-formed answer: {error}") from error


def result_text(result: Any) -> str:
    """Return a tool's result as text: the parts of MCP's content, else JSON."""
    if isinstance(result, Mapping):
        parts = result.get("content")
        if isinstance(parts, list) and parts:
            return "\n".join(str(each.get("text", f"[{each.get('type')}]")) for each in parts)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _reasons(found: Mapping[str, Any]) -> str:
    """Return what pydantic says about each field, in a line each."""
    errors = found.get("errors") or []
    return "\n".join(
        f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg')}" for each in errors
    )
