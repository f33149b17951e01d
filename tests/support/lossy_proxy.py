"""A proxy that loses answers."""

import socket
import threading
from contextlib import suppress


class Flaky:
    """Forwards every request, and hangs up instead of answering each second time.

    `plain`: without the header by which our server says that it counts turns.
    """

    def __init__(self, port: int, *, plain: bool = False) -> None:
        self._target = port
        self._plain = plain
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.answers = 0
        self.lost = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with (
                suppress(ConnectionError),
                near,
                socket.create_connection(("127.0.0.1", self._target)) as far,
            ):
                far.sendall(self._message(near))
                # a client that kept the connection could ask again before it sees the end of it
                answer = self._message(far).replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
                if self._plain:
                    answer = answer.replace(b"agentrl-turn", b"x-other-head")
                self.answers += 1
                if self.answers % 2:
                    self.lost += 1
                else:
                    near.sendall(answer)

    @staticmethod
    def _message(source: socket.socket) -> bytes:
        """One HTTP message with a length."""
        content = b""
        while True:
            some = source.recv(65536)
            if not some:
                raise ConnectionError("hung up within a message")
            content += some
            head, found, body = content.partition(b"\r\n\r\n")
            lengths = [
                line for line in head.lower().splitlines() if line.startswith(b"content-length:")
            ]
            if found and len(body) >= int(lengths[0].partition(b":")[2]):
                return content
