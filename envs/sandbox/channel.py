"""A process in a container, driven line by line over the stream it is attached to.

The engine frames what the process writes: one byte for stdout (1) or stderr (2), three of nothing,
four of length, then so many bytes.
"""

import socket
import time
from collections.abc import Callable

from agentrl.core.errors import EnvironmentFailure

MAX_LINE = 1 << 20  # bytes of one answer
MAX_STDERR = 2000  # bytes kept, to tell why a process ended
HEADER = 8
CHUNK = 1 << 16


class Overrun(EnvironmentFailure):
    """The sandbox was ended because the agent exceeded a limit."""


def _nothing() -> str:
    return ""


class Channel:
    """Sends one question at a time and returns its answer; used by one thread at a time.

    After any EnvironmentFailure the state of the process is unknown, so remove its sandbox.
    `overrun` returns the limit that the agent exceeded, if the process ended by that; then the
    error is an Overrun.
    """

    def __init__(self, connection: socket.socket, overrun: Callable[[], str] = _nothing) -> None:
        self._socket = connection
        self._overrun = overrun
        self._framed = bytearray()
        self._out = bytearray()
        self._err = bytearray()

    def ask(self, line: bytes, timeout_s: float) -> bytes:
        """Send a question and return the answer line.

        Raises EnvironmentFailure if the process ended, the answer is late or too long, and Overrun
        if the agent caused it.
        """
        deadline = time.monotonic() + timeout_s
        self.send(line + b"\n", timeout_s)
        while b"\n" not in self._out:
            if len(self._out) > MAX_LINE:
                raise EnvironmentFailure(f"sandbox: the answer has more than {MAX_LINE} bytes")
            self._receive(deadline, timeout_s)
        answer, _, rest = bytes(self._out).partition(b"\n")
        self._out = bytearray(rest)
        return answer

    def send(self, content: bytes, timeout_s: float) -> None:
        """Write to the process's stdin. Raises EnvironmentFailure."""
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(content)
        except TimeoutError as error:
            raise EnvironmentFailure(f"sandbox: accepted no input for {timeout_s:g} s") from error
        except OSError as error:
            raise self._end_error() from error

    def is_quiet(self) -> bool:
        """Return whether the process is alive and has sent no unexpected output."""
        if self._out or self._framed:
            return False
        try:
            self._socket.settimeout(0)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Disconnect; the process sees the end of its input."""
        self._socket.close()

    def _receive(self, deadline: float, timeout_s: float) -> None:
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            chunk = self._socket.recv(CHUNK)
        except TimeoutError as error:
            raise EnvironmentFailure(f"sandbox: no answer within {timeout_s:g} s") from error
        except OSError as error:
            raise self._end_error() from error
        if not chunk:
            raise self._end_error()
        self._framed += chunk
        self._unframe()

    def _unframe(self) -> None:
        """Split the stream into complete frames, by stdout and stderr."""
        while len(self._framed) >= HEADER:
            end = HEADER + int.from_bytes(self._framed[4:HEADER], "big")
            if len(self._framed) < end:
                return
            content = self._framed[HEADER:end]
            if self._framed[0] == 1:
                self._out += content
            else:
                self._err = (self._err + content)[-MAX_STDERR:]
            del self._framed[:end]

    def _end_error(self) -> EnvironmentFailure:
        if passed := self._overrun():
            return Overrun(f"sandbox: {passed}")
        said = self._err.decode(errors="replace").strip().rpartition("\n")[2]
        return EnvironmentFailure(f"sandbox: its process ended{': ' if said else ''}{said}")
