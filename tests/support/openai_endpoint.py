"""An OpenAI-compatible endpoint with scripted answers and faults."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes] | dict[str, Any]
Script = Callable[[dict[str, Any]], Answer]

KEY = "sk-very-secret-0123456789"


class Endpoint:
    """`script`: what answers a request's body, a dict for a 200; `asked`: (path, body) so far."""

    def __init__(self, url: str, script: Script) -> None:
        self.url = url
        self.script = script
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.keys: list[str] = []
        self.times: list[float] = []


@contextmanager
def serve_endpoint(script: Script) -> Iterator[Endpoint]:
    """Serve an endpoint on a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found.asked.append((self.path, body))
            found.keys.append(self.headers.get("authorization", ""))
            found.times.append(time.monotonic())
            answer = found.script(body)
            if isinstance(answer, dict):
                answer = (200, {}, json.dumps(answer).encode())
            status, headers, data = answer
            self.send_response(status)
            for name, value in (headers | {"content-length": str(len(data))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """A client that hung up."""

    server = Quiet(("127.0.0.1", 0), Handler)
    found = Endpoint(f"http://127.0.0.1:{server.server_port}/v1", script)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def completion(
    content: str | None = None, *calls: tuple[str, dict[str, Any]], tokens: int = 7
) -> Answer:
    """Return a chat completion."""
    entries = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": text}}
        for n, (name, text) in enumerate((name, json.dumps(given)) for name, given in calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if entries:
        message["tool_calls"] = entries
    return {
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"total_tokens": tokens},
    }


def failure(status: int, body: str = "", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, body.encode()
