"""A session with an MCP server, for one thread: the client's own event loop runs beside it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import Any, TextIO

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp_types import INVALID_PARAMS, CallToolResult

from agentrl.core.errors import EnvironmentFailure, in_words
from agentrl.envs.contract import Tool
from agentrl.envs.gateway.process import confine_command

SHOWN = 300  # characters of a command's last words


class Session:
    """Connected until `close`. A command's process belongs to this session alone."""

    def __init__(self, server: str, env: Mapping[str, str], timeout_s: float) -> None:
        """`server`: a URL, or a command line. `timeout_s`: of one request.

        Raises EnvironmentFailure where there is no such server.
        """
        self._where = f"mcp:{server}"
        self._undo = ExitStack()
        self._words = self._undo.enter_context(TemporaryFile("w+", errors="replace"))  # noqa: SIM115
        try:
            self._portal: BlockingPortal = self._undo.enter_context(start_blocking_portal())
            target = _target(server, env, self._words)
            client = Client(target, read_timeout_seconds=timeout_s, cache=None)
            self._client = self._undo.enter_context(self._portal.wrap_async_context_manager(client))
        except Exception as error:
            failure = self._failure(error)
            self._undo.close()
            raise failure from error

    def tools(self) -> tuple[Tool, ...]:
        """Every tool of the server. Raises EnvironmentFailure."""
        found: list[Tool] = []
        cursor: str | None = None
        while True:
            page = self._ask(self._list, cursor)
            found += [
                Tool(each.name, each.description or "", each.input_schema) for each in page.tools
            ]
            cursor = page.next_cursor
            if cursor is None:
                return tuple(found)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A tool's answer as text, also where the tool failed. Raises EnvironmentFailure."""
        try:
            result: CallToolResult = self._ask(self._client.call_tool, name, dict(arguments))
        except MCPError as error:  # the server refuses the arguments: the agent reads why
            return error.message
        return _text(result)

    def close(self) -> None:
        """End the session, and a command's process with it. Safe to call twice."""
        try:
            self._undo.close()
        except Exception as error:
            raise self._failure(error) from error

    async def _list(self, cursor: str | None) -> Any:
        return await self._client.list_tools(cursor=cursor)

    def _ask(self, function: Any, *arguments: Any) -> Any:
        """Raises MCPError for arguments that the server refuses, else EnvironmentFailure."""
        try:
            return self._portal.call(function, *arguments)
        except Exception as error:
            if isinstance(error, MCPError) and error.code == INVALID_PARAMS:
                raise
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> EnvironmentFailure:
        """With the last line that a command wrote to its standard error."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = f"{self._where}: {in_words(error)}"
        if not self._words.closed:
            self._words.seek(0)
            lines = [line.strip() for line in self._words if line.strip()]
            text += f": {lines[-1][:SHOWN]}" if lines else ""
        return EnvironmentFailure(text)


def _target(server: str, env: Mapping[str, str], words: TextIO) -> Any:
    if server.startswith(("http://", "https://")):
        return server
    command, *arguments = confine_command(shlex.split(server))
    parameters = StdioServerParameters(command=command, args=arguments, env=dict(env))
    return stdio_client(parameters, errlog=words)


def _text(result: CallToolResult) -> str:
    parts: Sequence[str] = [str(getattr(each, "text", f"[{each.type}]")) for each in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)
