"""Runs in a sandbox: one bash for an episode, command after command.

Commands are read from a pipe by an interactive bash without a terminal: an interrupt brings it back
to the next command with its variables and folder kept. Its end of a command is told on a
descriptor of its own.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from dataclasses import dataclass

from agentrl.envs.tasks.oslinux.in_sandbox.processes import Children, Head, Identity, Outgoing, pipe

TEXT_BYTES = 1 << 16  # kept of what one command writes
CONTROL = 198  # the descriptor on which bash tells that a command has ended
START_S = 10.0
INTERRUPT_S = 1.0  # from an interrupt to the kill
SWEEP_S = 10.0
ARGV = ("bash", "--noediting", "--login", "-i")
SETTLE = (
    "PS1= PS2= PROMPT_COMMAND=; set +H +o history; unset HISTFILE MAILCHECK; shopt -u checkwinsize"
)


@dataclass(frozen=True)
class ShellResult:
    """The output of a command. `late`: it was stopped. `ended`: the shell was replaced."""

    text: str
    late: bool = False
    ended: bool = False


class Shell:
    """A bash and its pipes; `pid` is bash's. Raises OSError where it cannot be started."""

    def __init__(self, children: Children, folder: str) -> None:
        self._children = children
        self._folder = folder
        self._count = 0
        self._start()

    def run(self, script: str, timeout_s: float, keep: frozenset[Identity]) -> ShellResult:
        """Run a command; interrupt, then kill, what does not end. Spares `keep`."""
        head = Head(TEXT_BYTES)
        if self._run_script(script, head, timeout_s):
            return ShellResult(head.text())
        if self._children.status(self.pid) is not None:
            self._restart(keep, sweep=False)
            return ShellResult(head.text(), ended=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGINT)
        if self._await_line(head, INTERRUPT_S):
            return ShellResult(head.text(), late=True)
        self._restart(keep, sweep=True)
        return ShellResult(head.text(), late=True, ended=True)

    def close(self) -> None:
        """Kill bash; what it started may live on."""
        if self._children.status(self.pid) is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                os.kill(self.pid, signal.SIGKILL)  # not its group: the item's processes are there
        for descriptor in (self._in, self._out, self._control):
            os.close(descriptor)

    def _start(self) -> None:
        theirs_in, self._in = os.pipe()
        os.set_blocking(self._in, False)
        self._out, theirs_out = pipe()
        self._control, theirs_control = pipe()
        files = {0: theirs_in, 1: theirs_out, 2: theirs_out, CONTROL: theirs_control}
        try:
            self.pid = self._children.spawn(ARGV, files, self._folder)
        finally:
            for descriptor in (theirs_in, theirs_out, theirs_control):
                os.close(descriptor)
        if not self._run_script(SETTLE, Head(0), START_S):
            raise OSError("bash did not start")

    def _restart(self, keep: frozenset[Identity], *, sweep: bool) -> None:
        """Start a new bash; if the agent broke bash, the next command reports it, too."""
        self.close()
        if sweep:
            self._children.sweep(keep, SWEEP_S)
        with contextlib.suppress(OSError):
            self._start()

    def _run_script(self, script: str, head: Head, timeout_s: float) -> bool:
        self._count += 1
        quoted = shlex.quote(script.replace("\0", ""))
        line = f"eval -- {quoted} </dev/null\nprintf '%s\\n' {self._count} >&{CONTROL}\n"
        return self._await_line(head, timeout_s, line.encode(errors="replace"))

    def _await_line(self, head: Head, timeout_s: float, line: bytes = b"") -> bool:
        """Return whether bash reports the end of this command in time."""
        control = Head(1 << 10)
        mark = f"{self._count}"

        def done() -> bool:
            told = mark in control.text().split()
            return told or self._children.status(self.pid) is not None

        outgoing = Outgoing(self._in, line) if line else None
        self._children.pump({self._out: head, self._control: control}, done, timeout_s, outgoing)
        return mark in control.text().split()
