"""The Linux of one episode: a sandbox of its own, until it is closed."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.sandbox.program import Program, python_program
from agentrl.envs.sandbox.sandbox import Sandboxes, SandboxLease
from agentrl.envs.tasks.oslinux.problem import Script

GRACE_S = 30.0  # beyond a command's own limit, before the sandbox counts as hung
PLAIN_S = 10.0  # of a request that runs nothing
MODULES = (
    "agentrl.envs.tasks.oslinux.in_sandbox.processes",
    "agentrl.envs.tasks.oslinux.in_sandbox.shell",
)

T = TypeVar("T")


class ScriptResult(msgspec.Struct, frozen=True):
    """The end of a script. `status`: None at a time-out; `changed`: whether files changed."""

    status: int | None
    text: str
    error: str
    changed: bool


class CommandResult(msgspec.Struct, frozen=True):
    """The output of a command. `late`: it was stopped; `ended`: its shell was replaced."""

    text: str
    late: bool
    ended: bool


class _FingerprintReply(msgspec.Struct, frozen=True):
    digest: str


class _StopReply(msgspec.Struct, frozen=True):
    stopped: bool = True


def program() -> Program:
    """Return the program that a sandbox of this task runs."""
    return python_program("agentrl.envs.tasks.oslinux.in_sandbox.sandbox_main", MODULES)


class Machine:
    """Leases a sandbox until it is closed. Raises EnvironmentFailure anywhere. `task`: for errors.

    The sandbox is nobody else's afterwards: its agent was root.
    """

    def __init__(self, sandboxes: Sandboxes, task: str = "os") -> None:
        self._task = task
        self._lease = SandboxLease(sandboxes, task)

    def run(
        self, script: Script, arguments: Sequence[str], timeout_s: float, *, watch: bool = False
    ) -> ScriptResult:
        """Run a script as a process. `watch`: report changes and kill what it left running."""
        request = {
            "run": script.code,
            "language": script.language,
            "arguments": arguments,
            "timeout_s": timeout_s,
            "watch": "/" if watch else "",
        }
        return self._ask(request, timeout_s, ScriptResult)

    def command(self, text: str, timeout_s: float) -> CommandResult:
        """Run a command in the episode's shell."""
        return self._ask({"shell": text, "timeout_s": timeout_s}, timeout_s, CommandResult)

    def put(self, folder: str, archive: bytes) -> None:
        """Unpack a tar archive in a folder."""
        self._lease.sandbox.put(folder, archive)

    def set_network(self, *, connected: bool) -> None:
        """Connect the machine to the network, or disconnect it."""
        self._lease.sandbox.set_network(connected=connected)

    def fingerprint(self) -> str:
        """Hash what was written to the disk since the start."""
        return self._ask({"fingerprint": "/"}, PLAIN_S, _FingerprintReply).digest

    def keep(self) -> None:
        """Mark what runs now, so that `stop` spares it."""
        self._ask({"keep": True}, PLAIN_S, _StopReply)

    def stop(self) -> None:
        """Kill every other process."""
        if not self._ask({"stop": True}, PLAIN_S, _StopReply).stopped:
            self.close()
            raise EnvironmentFailure(f"{self._task}: processes that cannot be killed")

    def close(self) -> None:
        """Give the sandbox up. Safe to call twice."""
        self._lease.release(sound=False)

    def _ask(self, request: Mapping[str, Any], timeout_s: float, kind: type[T]) -> T:
        return self._lease.ask(request, timeout_s + GRACE_S, kind)
