"""A TCP proxy between the processes of a run and a service, which can be cut or stalled.

process ─▶ 127.0.0.1:port ─(two threads a connection)─▶ the service
"""

import contextlib
import socket
import struct
import threading

CHUNK = 65536
CONNECT_S = 5.0
OPTIONS = (  # a peer that vanished is given up after 15 s
    ((socket.IPPROTO_TCP, socket.TCP_NODELAY), 1),
    ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 5),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), 5),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPCNT), 2),
)
NOW = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


class Proxy:
    """Forwards bytes until closed; safe for many threads."""

    def __init__(self, host: str, port: int) -> None:
        """`host`, `port`: of the service, which need not be there yet."""
        self.service = (host, port)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._taking = True
        self._swallowed: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def cut(self) -> int:
        """Reset every connection that stands; how many sockets that were. New ones are taken."""
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NOW)
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        return len(sockets)

    def stall(self) -> None:
        """Stop all traffic without closing a connection."""
        self._flowing.clear()

    def flow(self) -> None:
        """What stalled is cut; what comes from now on passes."""
        self._taking = True
        self.cut()
        self._flowing.set()

    def swallow(self) -> None:
        """Stop the traffic of open connections without closing them; new connections pass."""
        with self._lock:
            self._swallowed |= self._sockets

    def refuse(self) -> None:
        """The service is gone: what stands is reset, and what is new, until `flow`."""
        self._taking = False
        self.cut()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.flow()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        """One connection, from its first byte to its last."""
        try:
            if not self._taking:
                raise ConnectionRefusedError
            service = socket.create_connection(self.service, CONNECT_S)
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NOW)
            client.close()
            return
        service.settimeout(None)
        for each in (client, service):
            for option, setting in OPTIONS:
                each.setsockopt(*option, setting)
        with self._lock:
            self._sockets |= {client, service}
        back = threading.Thread(target=self._carry, args=(service, client), daemon=True)
        back.start()
        self._carry(client, service)
        back.join()
        with self._lock:
            self._sockets -= {client, service}
            self._swallowed -= {client, service}
        client.close()
        service.close()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        """One direction; its end ends the other."""
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK):
                self._flowing.wait()
                if source not in self._swallowed:
                    target.sendall(chunk)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
