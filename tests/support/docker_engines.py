"""A Docker engine of a test's own, to stop, kill and start again."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
from running import eventually


class OwnEngine:
    """A dockerd without a network. `folder`: of its log; `root`: of what it keeps.

    `sockets`: a folder with a short name, for a socket's has at most 107 bytes.
    """

    def __init__(self, folder: Path, root: Path, sockets: str) -> None:
        self.url = f"unix://{sockets}/docker.sock"
        self._sockets = sockets
        self._folder = folder
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            "unshare",  # a network of its own: without, it would take the bridge of others
            "--net",
            "dockerd",
            "--bridge=none",
            "--iptables=false",
            f"--data-root={self._root}",
            f"--exec-root={self._sockets}/exec",
            f"--pidfile={self._folder}/docker.pid",
            f"--host={self.url}",
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        eventually(self.answers, within_s=60, text=(self._folder / "log").read_text)

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            try:
                probe.connect(self.url.removeprefix("unix://"))
                probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b"200 OK" in probe.recv(100)
            except OSError:
                return False

    def signal(self, number: signal.Signals) -> None:
        """To dockerd alone."""
        assert self._process is not None
        self._process.send_signal(number)

    def end(self) -> None:
        """Its containers first."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(40)
        finally:
            with contextlib.suppress(ProcessLookupError):  # its containerd
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def own_engine(
    folder: Path, root: Path, image: str, source: docker.DockerClient
) -> Iterator[OwnEngine]:
    """Start a dockerd with an image of another engine."""
    with tempfile.TemporaryDirectory(prefix="engine-", ignore_cleanup_errors=True) as sockets:
        engine = OwnEngine(folder, root, sockets)
        try:
            engine.start()
            client = docker.APIClient(base_url=engine.url, timeout=120)
            content = b"".join(source.api.get_image(image))
            client.load_image(content)
            client.close()
            yield engine
        finally:
            engine.end()
