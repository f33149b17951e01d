"""Runs in a container, as its first process: starts the image's server. A JSON line in and out.

    {"argv": […], "folder": …, "port": n, "timeout_s": n}
        → {"address": the container's own, "error": ""}
        → {"address": "", "error": why no server answers on the port}

The server ends with this process, at the end of stdin.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, TextIO

PAUSE_S = 0.1
ELSEWHERE = ("192.0.2.1", 9)  # reserved for documentation: nothing is sent there
SHOWN = 300  # characters of the server's last line


class Server:
    """The image's server, started by the first request."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._words: TextIO = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115

    def answer(self, request: dict[str, Any]) -> dict[str, str]:
        try:
            if self._process is None:
                self._process = self._start(request["argv"], request["folder"])
        except OSError as error:
            return {"address": "", "error": str(error)}
        deadline = time.monotonic() + request["timeout_s"]
        while not _is_open(request["port"]):
            if (status := self._process.poll()) is not None:
                return {"address": "", "error": f"it exited with {status}{self._last_line()}"}
            if time.monotonic() > deadline:
                return {"address": "", "error": f"nothing listens on port {request['port']}"}
            time.sleep(PAUSE_S)
        return {"address": _own_address(), "error": ""}

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _start(self, argv: Sequence[str], folder: str) -> subprocess.Popen[str]:
        nothing = subprocess.DEVNULL
        return subprocess.Popen(
            argv, cwd=folder, text=True, stdin=nothing, stdout=nothing, stderr=self._words
        )

    def _last_line(self) -> str:
        """Return a colon and what it wrote last; empty: nothing."""
        self._words.seek(0)
        lines = [line.strip() for line in self._words if line.strip()]
        return f": {lines[-1][:SHOWN]}" if lines else ""


def _is_open(port: int) -> bool:
    try:
        socket.create_connection((_own_address(), port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect(ELSEWHERE)
        return str(asked.getsockname()[0])


def serve(lines: Iterable[bytes], out: BinaryIO) -> None:
    """Answer every line of stdin."""
    server = Server()
    for line in lines:
        out.write(json.dumps(server.answer(json.loads(line))).encode() + b"\n")
        out.flush()
    server.close()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
