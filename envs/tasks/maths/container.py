"""The Python of one episode: an interpreter in a sandbox, which is leased until it is closed."""

import msgspec

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.sandbox.program import Program, SandboxLimits, python_program
from agentrl.envs.sandbox.sandbox import Sandboxes, SandboxLease
from agentrl.envs.tasks.maths.problem import Execution

GRACE_S = 30.0  # beyond the code's own limit, before the sandbox counts as hung
MIB = 1 << 20
DRIVER_BYTES = 128 * MIB  # beside the interpreter
MODULES = (
    "agentrl.envs.tasks.maths.interpreter",
    "agentrl.envs.tasks.oslinux.in_sandbox.processes",
)


class _Reply(msgspec.Struct, frozen=True):
    text: str
    error: str
    late: bool
    ended: bool


class _EndReply(msgspec.Struct, frozen=True):
    clean: bool


def program() -> Program:
    """Return the program that a sandbox of this task runs."""
    return python_program("agentrl.envs.tasks.maths.sandbox_main", MODULES)


def limits(memory_mb: int) -> SandboxLimits:
    """Return the limits of a sandbox; its driver is PID 1 and root, the code runs as nobody.

    `memory_mb`: MiB of the interpreter. There is nothing to write to.
    """
    return SandboxLimits(
        memory_bytes=memory_mb * MIB + DRIVER_BYTES,
        tmpfs_bytes=0,
        root=True,
        capabilities=("SETUID", "SETGID", "KILL"),
    )


class ContainedPython:
    """An Interpreter that leases a sandbox until it is closed. `timeout_s`: of one call."""

    def __init__(self, sandboxes: Sandboxes, *, timeout_s: float, memory_mb: int) -> None:
        self._lease = SandboxLease(sandboxes, "maths")
        self._timeout_s, self._memory_mb = timeout_s, memory_mb

    def run(self, code: str) -> Execution:
        """Raises EnvironmentFailure, and Overrun if the code ended the sandbox."""
        request = {
            "run": code,
            "timeout_s": self._timeout_s,
            "memory_bytes": self._memory_mb * MIB,
        }
        reply = self._lease.ask(request, self._timeout_s + GRACE_S, _Reply)
        error = reply.error
        if reply.late:
            error = f"TimeoutError: the code ran for more than {self._timeout_s:g} s"
        if reply.ended:
            error += "\nThe interpreter was started anew: its variables are gone."
        return Execution(reply.text, error.strip())

    def close(self) -> None:
        """Give the sandbox back, or up if the episode left something in it."""
        if self._lease.is_over:
            return
        try:
            reply = self._lease.ask({"end": True}, self._timeout_s + GRACE_S, _EndReply)
        except EnvironmentFailure:  # it is given up; the episode has its outcome
            return
        self._lease.release(sound=reply.clean)
