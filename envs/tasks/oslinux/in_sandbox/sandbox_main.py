"""Runs in a sandbox as its first process: a JSON line in, a JSON line out.

    {"run": code, "language": …, "arguments": […], "timeout_s": n, "watch": folder or ""}
        → {"status": exit status or null when it was too slow, "text": …, "error": …, "changed": …}
    {"shell": command, "timeout_s": n} → {"text": …, "late": …, "ended": …}
    {"fingerprint": folder} → {"digest": …}      of what was written there since the machine began
    {"keep": true} → {}       the processes that run now outlive `stop`
    {"stop": true} → {"stopped": …}      every other one is killed

The question, the answer and the target never stay here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from agentrl.envs.tasks.oslinux.in_sandbox.processes import (
    Children,
    Head,
    Identity,
    fingerprint,
    has_changes,
    pipe,
)
from agentrl.envs.tasks.oslinux.in_sandbox.shell import Shell

TEXT_BYTES = 1 << 17  # kept of what a script writes
ERROR_BYTES = 2000
CLOCK_S = 0.02  # the resolution of a file's times
SWEEP_S = 10.0
ARGVS = {"bash": ("bash", "-c"), "python": ("python3", "-c")}


class SandboxMain:
    """Answers requests about the machine it runs on."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns() - int(CLOCK_S * 1e9)
        self._children = Children()
        self._folder = str(Path.cwd())
        self._there: frozenset[Identity] = frozenset()  # what ran when `keep` was asked for
        self._keep: frozenset[Identity] = frozenset()  # that, but the shell
        self._shell: Shell | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "run" in request:
            return self._run(request)
        if "shell" in request:
            return self._command(request)
        if "fingerprint" in request:
            return {"digest": fingerprint(request["fingerprint"], self._began_ns)}
        if "keep" in request:
            shell = self._shell.pid if self._shell else 0  # the agent's: what it starts is not kept
            self._there = frozenset(self._children.living())
            self._keep = frozenset(each for each in self._there if each[0] != shell)
            return {}
        return self._stop()

    def close(self) -> None:
        """Kill everything."""
        self._keep = frozenset()
        self._stop()

    def _command(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._shell is None:
            self._shell = Shell(self._children, self._folder)
        return asdict(self._shell.run(request["shell"], request["timeout_s"], self._keep))

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        since = time.time_ns()
        if request["watch"]:
            time.sleep(CLOCK_S)
        answer = self._script(request)
        changed = False
        if request["watch"]:
            self._children.sweep(self._there, SWEEP_S)  # the shell holds what the start script set
            gone = self._there - self._children.living()
            changed = bool(gone) or has_changes(request["watch"], since)
        return answer | {"changed": changed}

    def _script(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a script as its own process; what it leaves in the background goes on."""
        arguments = [argument.replace("\0", "") for argument in request["arguments"]]
        argv = [*ARGVS[request["language"]], request["run"].replace("\0", "")]
        if arguments and request["language"] == "bash":
            argv.append("--")
        out, error = Head(TEXT_BYTES), Head(ERROR_BYTES)
        (reading, writing), (reading_error, writing_error) = pipe(), pipe()
        nothing = os.open("/dev/null", os.O_RDONLY)
        files = {0: nothing, 1: writing, 2: writing_error}
        try:
            pid = self._children.spawn([*argv, *arguments], files, self._folder)
        finally:
            for descriptor in files.values():
                os.close(descriptor)
        reads = {reading: out, reading_error: error}
        self._children.pump(
            reads, lambda: self._children.status(pid) is not None, request["timeout_s"]
        )
        status = self._children.status(pid)
        if status is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                os.killpg(pid, signal.SIGKILL)
        for descriptor in reads:
            os.close(descriptor)
        return {"status": status, "text": out.text(), "error": error.text()}

    def _stop(self) -> dict[str, Any]:
        if self._shell is not None:
            self._shell.close()
            self._shell = None
        return {"stopped": self._children.sweep(self._keep, SWEEP_S)}


def serve(lines: Iterable[bytes], out: BinaryIO) -> None:
    """Answer every line of stdin."""
    inside = SandboxMain()
    for line in lines:
        out.write(json.dumps(inside.answer(json.loads(line))).encode() + b"\n")
        out.flush()
    inside.close()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
