"""Runs in a sandbox as its first process: drives the interpreter of one episode after the other.

    {"run": code, "timeout_s": n, "memory_bytes": n}
        → {"text": …, "error": …, "late": …, "ended": …}
    {"end": true} → {"clean": …}      the interpreter is replaced; whether nothing is left of it

The next interpreter starts before it is needed. The question and the answer never come here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

from agentrl.envs.tasks.maths.interpreter import READY, REPLIES, REQUESTS
from agentrl.envs.tasks.oslinux.in_sandbox.processes import Children, Head, Outgoing, pipe

TEXT_BYTES = 1 << 14  # kept of what one code prints
ERROR_BYTES = 1 << 11
START_S = 20.0
SWEEP_S = 10.0
SHARED = ("/dev/shm", "/dev/mqueue")  # noqa: S108  # all that nobody can write to
IPC = ("/proc/sysvipc/msg", "/proc/sysvipc/sem", "/proc/sysvipc/shm")


class Driver:
    """Answers requests about the episode's interpreter."""

    _is_ready: bool
    _requests: int  # descriptors of its pipes
    _out: int
    _replies: int

    def __init__(self) -> None:
        package = resources.files("agentrl.envs.tasks.maths")
        self._source = package.joinpath("interpreter.py").read_text("utf-8")
        self._children = Children()
        self._count = 0
        self._start()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "run" in request:
            return self._run(request)
        self._replace()
        return {"clean": not any(map(_has_something, SHARED)) and not any(map(_has_rows, IPC))}

    def close(self) -> None:
        """Kill everything."""
        self._children.sweep(frozenset(), SWEEP_S)

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run code. An interpreter that is late, ends or leaves processes behind is replaced."""
        self._await_start()
        self._count += 1
        asked = {
            "number": self._count,
            "code": request["run"],
            "memory_bytes": request["memory_bytes"],
        }
        text, replies = Head(TEXT_BYTES), Head(ERROR_BYTES)
        mark = f"{self._count} "

        def has_ended() -> bool:
            return self._children.status(self._pid) is not None

        def replied() -> bool:
            return replies.text().startswith(mark) and replies.text().endswith("\n")

        outgoing = Outgoing(self._requests, json.dumps(asked).encode() + b"\n")
        reads = {self._out: text, self._replies: replies}
        in_time = self._children.pump(
            reads, lambda: replied() or has_ended(), request["timeout_s"], outgoing
        )
        alone = {pid for pid, _ in self._children.living()} == {self._pid}
        if lost := not (replied() and alone):
            self._replace()
        error = replies.text().removeprefix(mark).strip() if replied() else ""
        return {"text": text.text(), "error": error, "late": not in_time, "ended": lost}

    def _await_start(self) -> None:
        """Wait for an interpreter that has just been started: its code's time begins afterwards."""
        if self._is_ready:
            return
        found = Head(len(READY))
        reads = {self._replies: found}
        if not self._children.pump(reads, lambda: found.text() == READY.decode(), START_S):
            sys.exit("the interpreter does not start")
        self._is_ready = True

    def _replace(self) -> None:
        """Kill the interpreter and all that it started, and start the next one."""
        if not self._children.sweep(frozenset(), SWEEP_S):
            sys.exit("processes that cannot be killed")
        for descriptor in (self._requests, self._out, self._replies):
            os.close(descriptor)
        self._start()

    def _start(self) -> None:
        self._is_ready = False
        requests, self._requests = os.pipe()
        os.set_blocking(self._requests, False)
        self._out, out = pipe()
        self._replies, replies = pipe()
        nothing = os.open("/dev/null", os.O_RDONLY)
        files = {0: nothing, 1: out, 2: out, REQUESTS: requests, REPLIES: replies}
        try:
            argv = ("python3", "-I", "-c", self._source)
            self._pid = self._children.spawn(argv, files, "/")
        finally:
            for descriptor in {*files.values()}:
                os.close(descriptor)


def _has_something(folder: str) -> bool:
    try:
        return any(Path(folder).iterdir())
    except OSError:  # there is none
        return False


def _has_rows(table: str) -> bool:
    """Whether a table of System V's shared things has a row below its head."""
    try:
        return len(Path(table).read_text().splitlines()) > 1
    except OSError:
        return False


def serve(lines: Iterable[bytes], out: BinaryIO) -> None:
    """Answer every line of stdin."""
    driver = Driver()
    for line in lines:
        out.write(json.dumps(driver.answer(json.loads(line))).encode() + b"\n")
        out.flush()
    driver.close()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
