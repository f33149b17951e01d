"""The item's tables in an SQLite inside a sandbox: the same engine, out of this process."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.envs.sandbox.channel import Overrun
from agentrl.envs.sandbox.program import Program, python_program
from agentrl.envs.sandbox.sandbox import Sandboxes, SandboxLease
from agentrl.envs.tasks.dbbench.problem import Table

GRACE_S = 15.0  # beyond a statement's own limit, before the sandbox counts as hung

MODULES = (
    "agentrl.core.errors",
    "agentrl.envs.tasks.dbbench.databases.functions",
    "agentrl.envs.tasks.dbbench.databases.regexp",
    "agentrl.envs.tasks.dbbench.databases.sqlite",
    "agentrl.envs.tasks.dbbench.scoring",
)


def program() -> Program:
    """Return the program that a sandbox of this task runs."""
    return python_program("agentrl.envs.tasks.dbbench.databases.sandbox_main", MODULES)


class ContainedDatabase:
    """A Database that leases a sandbox until it is closed. Raises EnvironmentFailure anywhere."""

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        sandboxes: Sandboxes,
        timeout_s: float,
        mysql: bool = False,
    ) -> None:
        self._patience_s = timeout_s + GRACE_S
        self._lease = SandboxLease(sandboxes, "dbbench")
        asked = {"open": msgspec.to_builtins(tables), "timeout_s": timeout_s, "mysql": mysql}
        opened = self._ask(asked)
        if "broken" in opened:
            self.close()
            raise ItemError(opened["broken"])

    def execute(self, sql: str) -> str:
        return self._ask({"sql": sql})["text"]

    def table_hash(self) -> str:
        return self._ask({"hash": True})["text"]

    def close(self) -> None:
        self._lease.release(sound=True)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, str]:
        try:
            return self._lease.ask(request, self._patience_s, dict[str, str])
        except Overrun as error:  # SQLite has limits of its own: the agent caused none of it
            raise EnvironmentFailure(f"dbbench: {error}") from error
