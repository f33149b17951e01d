"""A TCP proxy before RabbitMQ that a test cuts, closes or stalls."""

import contextlib
import select
import socket
import threading

from running import eventually


class RabbitProxy:
    """Forwards bytes until closed. `refused`: how many connections it has refused."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._refusing = threading.Event()
        self._flowing = threading.Event()
        self._flowing.set()
        self.refused = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all open connections."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def refuse(self) -> None:
        """Close all open connections and each new one, until `admit`."""
        self._refusing.set()
        self.cut()

    def admit(self) -> None:
        """Accept new connections again."""
        self._refusing.clear()

    def refuse_and_wait(self) -> None:
        """Refuse connections; return after at least two new ones were refused."""
        self.refuse()
        enough = self.refused + 2
        eventually(lambda: self.refused >= enough, within_s=60, text=lambda: str(self.refused))

    def stall(self) -> None:
        """Keep connections open and forward nothing, until `resume`."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward what arrived since `stall`, and all that follows."""
        self._flowing.set()

    def close(self) -> None:
        self.resume()
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refusing.is_set():
                    self.refused += 1
                    client.close()
                    continue
                pair = (client, socket.create_connection(self._target))
                self._pairs.append(pair)
                threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        with client, server, contextlib.suppress(OSError):
            while True:
                for end in select.select(list(other), [], [])[0]:
                    some = end.recv(65536)
                    if not some:
                        return
                    self._flowing.wait()
                    other[end].sendall(some)
