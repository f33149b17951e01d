"""Steps a second and CPU of our env server against `agentrl-worker`: same client, same task.

    python benchmarks/env_server.py
    python benchmarks/env_server.py --memory

The arms run in turn, so that a busy machine slows both. `--peer`: a Python with `agentrl-worker`.
`--memory`: instead, resident memory of our server over 20,000 sessions.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
PEER = ROOT / "tests/oracles/counting_worker.py"
CONCURRENCY = 256
TURNS = 10  # of one session
WARM_UP = 2_000  # sessions; final answers are kept of the last 1,000
NOBODY = "http://127.0.0.1:9/api"  # the peer's controller: nobody listens
CALL = {"name": "add", "arguments": '{"number":1}'}
TURN = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": CALL}]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default=str(ROOT / ".venv-oracles/bin/python"))
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--at", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--sessions", type=int, default=20_000, help="of --memory")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    elif options.memory:
        print(json.dumps(memory(options.sessions)))
    else:
        print(json.dumps(compare(options)))


def compare(options: argparse.Namespace) -> list[dict[str, float]]:
    with ours() as our_server, theirs(options.peer) as their_server:
        return [level(our_server, their_server, at, options) for at in options.at]


def level(ours: "Server", theirs: "Server", at: int, options: Any) -> dict[str, float]:
    """Medians of the repeats, and of the ratio of each pair, `at` concurrent sessions."""
    pairs = []
    for repeat in range(options.repeats + 1):
        seconds = options.seconds if repeat else 0.5
        pairs.append((ours.steps(at, seconds), theirs.steps(at, seconds)))
    pairs = pairs[1:]
    return {
        "sessions": at,
        "our_steps_per_s": round(statistics.median(our[0] for our, _ in pairs)),
        "their_steps_per_s": round(statistics.median(their[0] for _, their in pairs)),
        "speed_ratio": round(statistics.median(our[0] / their[0] for our, their in pairs), 2),
        "our_cpu_ms": round(statistics.median(our[1] for our, _ in pairs), 3),
        "their_cpu_ms": round(statistics.median(their[1] for _, their in pairs), 3),
        "cpu_ratio": round(statistics.median(their[1] / our[1] for our, their in pairs), 2),
    }


def memory(sessions: int) -> dict[str, float]:
    """MB of our server after a warm-up of WARM_UP sessions, and `sessions` later."""
    with ours() as server:
        asyncio.run(server.play(64, sessions=WARM_UP))
        warm = server.process.memory_info().rss / 1e6
        asyncio.run(server.play(64, sessions=sessions))
        end = server.process.memory_info().rss / 1e6
    return {
        "sessions": sessions,
        "warm_mb": round(warm, 1),
        "end_mb": round(end, 1),
        "growth": round(end / warm - 1, 4),
    }


class Server:
    """A server process and its clients."""

    def __init__(self, pid: int, port: int) -> None:
        self.process = psutil.Process(pid)
        self.port = port
        self._ids = iter(range(1, 1 << 40))

    def steps(self, at: int, seconds: float) -> tuple[float, float]:
        """Steps a second, and CPU milliseconds of the server for each."""
        before, began = sum(self.process.cpu_times()[:2]), time.perf_counter()
        steps = asyncio.run(self.play(at, seconds=seconds))
        took = time.perf_counter() - began
        return steps / took, 1000 * (sum(self.process.cpu_times()[:2]) - before) / steps

    async def play(self, at: int, seconds: float = 1e9, sessions: int = 1 << 40) -> int:
        """Whole sessions, `at` at once, for some time or a number of them; the steps made."""
        deadline = time.perf_counter() + seconds
        left = iter(range(sessions))
        players = (self._player(deadline, left) for _ in range(at))
        return sum(await asyncio.gather(*players))

    async def _player(self, deadline: float, left: Iterator[int]) -> int:
        _, link = await asyncio.get_running_loop().create_connection(Link, "127.0.0.1", self.port)
        steps = 0
        while time.perf_counter() < deadline and next(left, None) is not None:
            session_id = next(self._ids)
            await link.post("start_sample", {"session_id": session_id, "index": TURNS - 1})
            for _ in range(TURNS):
                answer = await link.post("interact", {"session_id": session_id, "messages": [TURN]})
                steps += 1
            if b'"finish":true' not in answer:
                raise SystemExit(f"unexpected: {answer[:300]!r}")
        link.transport.close()
        return steps


class Link(asyncio.Protocol):
    """A kept connection: one request at a time, an answer with a length."""

    transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._read = b""

    def post(self, verb: str, body: Any) -> "asyncio.Future[bytes]":
        self._answer = asyncio.get_running_loop().create_future()
        content = json.dumps(body, separators=(",", ":")).encode()
        head = f"POST /api/{verb} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self.transport.write(head.encode() + b"content-length: %d\r\n\r\n" % len(content) + content)
        return self._answer

    def data_received(self, received: bytes) -> None:
        self._read += received
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found:
            return
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if len(body) >= int(length):
            self._read = b""
            if not head.startswith(b"HTTP/1.1 200"):
                self._answer.set_exception(SystemExit(f"unexpected: {head!r} {body[:300]!r}"))
            self._answer.set_result(body)


@contextmanager
def ours() -> Iterator[Server]:
    port = free_port()
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests/support")])
    with running([sys.executable, __file__, "--serve", str(port)], port, path) as server:
        yield server


@contextmanager
def theirs(python: str) -> Iterator[Server]:
    port = free_port()
    command = [python, str(PEER), str(port), NOBODY, str(CONCURRENCY)]
    with running(command, port, "") as server:  # its package is named agentrl, too
        yield server


@contextmanager
def running(command: list[str], port: int, path: str) -> Iterator[Server]:
    environment = os.environ | {"PYTHONPATH": path}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield Server(process.pid, port)
    finally:
        process.kill()
        process.wait()


def serve(port: int) -> None:
    """Our env server, with the task that the peer has too."""
    import threading

    from agentrl.core.config.sections.tasks import Envs, Task
    from agentrl.envs import registry
    from agentrl.envs.server.server import EnvServer

    registry.TASKS["counting"] = "counting_task:CountingSource"
    EnvServer({"counting": Task()}, Envs(port=port, concurrency=CONCURRENCY))
    threading.Event().wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
