"""A collector of traces: OTLP over HTTP, decoded, kept in memory."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived; `parent`: empty for a root; ids in hexadecimal."""

    name: str
    trace: str
    span: str
    parent: str
    service: str
    fields: dict[str, Any]
    seconds: float
    failed: bool


@dataclass
class Collector:
    """`status`: of every answer; what another than 200 refuses is not kept.

    `bodies`, `headers`: of the requests, the bodies uncompressed.
    """

    url: str = ""
    status: int = 200
    heard: list[ReceivedSpan] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def trace(self, trace: str) -> list[ReceivedSpan]:
        return [each for each in self.heard if each.trace == trace]


@contextmanager
def run_collector() -> Iterator[Collector]:
    """Run a collector at a free port."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers["content-encoding"] == "gzip":
                body = gzip.decompress(body)
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            if found.status == 200:
                found.bodies.append(body)
                found.heard += decode_spans(body)
            answer = b"" if found.status == 200 else b"no, because"
            self.send_response(found.status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


def decode_spans(body: bytes) -> list[ReceivedSpan]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    return [
        ReceivedSpan(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            _fields(resource.resource.attributes)["service.name"],
            _fields(span.attributes),
            (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
            span.status.code == 2,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _fields(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
