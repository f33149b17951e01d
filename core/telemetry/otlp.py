"""Exports spans as OTLP over HTTP. The only module that imports OpenTelemetry.

    take ─▶ a bounded queue ─▶ a thread ─▶ POST endpoint

If the collector is unavailable, slow or full, spans are dropped and counted; no process waits.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from agentrl.core.config.sections import Tracing
from agentrl.core.errors import ConfigError
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics, tracing
from agentrl.core.telemetry.tracing import Field, Sink, Span

MAX_WAITING = 8192  # spans that wait; more are dropped
BATCH = 512
GATHER_S = 0.5  # between two requests while spans are few

OPERATIONS = {  # of spans, as OpenTelemetry's semantic conventions for generative AI name them
    "episode": "invoke_agent",
    "policy": "text_completion",
    "completion": "text_completion",
    "environment": "execute_tool",
}
GEN_AI = {  # fields of spans
    "model": "gen_ai.request.model",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}

log = get_logger()


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for one request with its repetitions, and for what is queued at the end.

    A process drains besides the latter, and its supervisor gives it 5.5 s for both.
    """

    post_s: float = 1.0
    flush_s: float = 1.0


@contextmanager
def export_spans(
    config: Tracing, run: str, role: str, process: str = "", patience: Patience = Patience()
) -> Iterator[None]:
    """Send the spans of this process to `endpoint` inside this context. Raises ConfigError."""
    if not config.endpoint:
        yield
        return
    own = {"service.name": f"agentrl-{role}", "agentrl.run": run}
    own["agentrl.process"] = process or role
    sender = Sender(config.endpoint, own, post_s=patience.post_s)
    tracing.set_sink(Sink(sender.take, config.share, sender.flush))
    try:
        yield
    finally:
        tracing.set_sink(None)
        sender.close(patience.flush_s)


class Sender:
    """Sends spans on its own thread. Thread-safe. `dropped`, `sent`: counts."""

    def __init__(
        self,
        endpoint: str,
        resource: Mapping[str, str],
        *,
        max_waiting: int = MAX_WAITING,
        post_s: float = 1.0,
    ) -> None:
        """`max_waiting`: size of the queue. Raises ConfigError: no OpenTelemetry, no URL."""
        self._make = _converter(resource)
        self._exporter = _exporter(endpoint, post_s)
        self._spans: queue.Queue[Span] = queue.Queue(max_waiting)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.sent = self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def take(self, span: Span) -> None:
        """Queue a span without waiting."""
        try:
            self._spans.put_nowait(span)
        except queue.Full:
            self._count(0, 1)

    def flush(self, timeout_s: float) -> None:
        """Wait until the queued spans are sent or dropped, but not longer than the limit."""
        deadline = time.monotonic() + timeout_s
        while self._spans.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self, timeout_s: float) -> None:
        """Send queued spans until the limit, then drop the rest."""
        self._ended.set()
        self.flush(timeout_s)
        self._exporter.shutdown()
        if left := self._spans.unfinished_tasks:
            self._count(0, left)
        if self.dropped:
            log.warning("Spans dropped", dropped=self.dropped, sent=self.sent)

    def _run(self) -> None:
        while batch := self._batch():
            sent = self._post(batch)
            self._count(len(batch) if sent else 0, 0 if sent else len(batch))
            for _ in batch:
                self._spans.task_done()
            if len(batch) < BATCH:
                self._ended.wait(GATHER_S)

    def _batch(self) -> list[Span]:
        """Return at least one span; none after the last one was sent and the sender was closed."""
        while not self._spans.qsize():
            if self._ended.wait(0.1) and not self._spans.qsize():
                return []
        found: list[Span] = []
        while len(found) < BATCH and self._spans.qsize():
            found.append(self._spans.get())
        return found

    def _post(self, batch: Sequence[Span]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export([self._make(span) for span in batch])
        except Exception as error:  # whatever a library makes of a collector: spans are dropped
            log.info("Spans not sent", error=f"{type(error).__name__}: {error}")
            return False
        return bool(result is SpanExportResult.SUCCESS)

    def _count(self, sent: int, dropped: int) -> None:
        with self._lock:
            self.sent += sent
            self.dropped += dropped
        metrics.SPANS.labels(status="sent").inc(sent)
        metrics.SPANS.labels(status="dropped").inc(dropped)


def _exporter(endpoint: str, post_s: float) -> Any:
    """Raises ConfigError."""
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise ConfigError(
            f"tracing.endpoint: {endpoint!r} is not an http(s) URL",
            hint="use a URL such as http://127.0.0.1:4318/v1/traces",
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            "tracing.endpoint is set, but OpenTelemetry is not installed",
            hint="run `pip install 'agentrl-system[tracing]'`",
        ) from error
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # drops are counted and told
    return OTLPSpanExporter(endpoint=endpoint, timeout=post_s)


def attributes(span: Span) -> Mapping[str, Field]:
    """Return the attributes of a span, with OpenTelemetry's names (`gen_ai.*`) where it has any."""
    own = {GEN_AI.get(name, f"agentrl.{name}"): value for name, value in span.fields.items()}
    operation = OPERATIONS.get(span.name)
    return {"gen_ai.operation.name": operation, **own} if operation else own


def _converter(own: Mapping[str, str]) -> Any:
    """Return a converter from our spans to OpenTelemetry's."""
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags
    except ImportError:
        return None  # `_exporter` says so
    resource, sampled = Resource(dict(own)), TraceFlags(TraceFlags.SAMPLED)

    def make(span: Span) -> ReadableSpan:
        trace = span.mark.trace
        parent = SpanContext(trace, span.parent, is_remote=True, trace_flags=sampled)
        failed = "error" in span.fields
        return ReadableSpan(
            name=span.name,
            context=SpanContext(trace, span.mark.span, is_remote=False, trace_flags=sampled),
            parent=parent if span.parent else None,
            resource=resource,
            attributes=attributes(span),
            status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
            start_time=round(span.began * 1e9),
            end_time=round(span.ended * 1e9),
        )

    return make
