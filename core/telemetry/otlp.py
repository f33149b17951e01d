"""Exports spans as OTLP over HTTP. The only module that imports OpenTelemetry.

    take ─▶ a bounded queue ─▶ a thread ─▶ POST endpoint

If the collector is unavailable, slow or full, or refuses spans, they are dropped and counted; no
process waits. The first refusal is logged with what to do.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from agentrl.core.config.sections.monitoring import Tracing
from agentrl.core.errors import ConfigError
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics, tracing
from agentrl.core.telemetry.tracing import Field, Sink, Span

MAX_WAITING = 8192  # spans that wait; more are dropped
MAX_WAITING_CHARACTERS = 1 << 25  # of their fields
BATCH = 512
BATCH_CHARACTERS = 1 << 20  # of fields, with which a request is full
GATHER_S = 0.5  # between two requests while spans are few
POST_S = 10.0  # OTLP's own default
SHOWN = 200  # characters of a collector's answer

OPERATIONS = {  # of spans, as OpenTelemetry's semantic conventions for generative AI name them
    "episode": "invoke_agent",
    "policy": "chat",
    "completion": "text_completion",
    "environment": "execute_tool",
}
GEN_AI = {  # fields of spans
    "model": "gen_ai.request.model",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "conversation_id": "gen_ai.conversation.id",
    "system_instructions": "gen_ai.system_instructions",
    "input_messages": "gen_ai.input.messages",
    "output_messages": "gen_ai.output.messages",
    "tool": "gen_ai.tool.name",
    "tool_call_id": "gen_ai.tool.call.id",
    "tool_arguments": "gen_ai.tool.call.arguments",
    "tool_result": "gen_ai.tool.call.result",
}
REFUSALS = {  # by HTTP status: what to do
    401: "set the collector's key in OTEL_EXPORTER_OTLP_HEADERS",
    403: "the key in OTEL_EXPORTER_OTLP_HEADERS needs the right to write traces there",
    404: "check tracing.endpoint, and the project in OTEL_EXPORTER_OTLP_HEADERS if it names one",
}
TRANSIENT = (408, 429)  # refusals that say "later"

log = get_logger()


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for one request with its repetitions, and for what is queued at the end.

    A process drains besides the latter, and its supervisor gives it 5.5 s for both.
    """

    post_s: float = POST_S
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
    sender = Sender(config.endpoint, own, post_s=patience.post_s, gzip=config.messages)
    tracing.set_sink(Sink(sender.take, config.share, sender.flush, config.messages))
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
        post_s: float = POST_S,
        gzip: bool = False,
    ) -> None:
        """`max_waiting`: size of the queue. Raises ConfigError: no OpenTelemetry, no URL."""
        self._make = _converter(resource)
        self._exporter = _exporter(endpoint, post_s, self._note_refusal, gzip=gzip)
        self._endpoint = endpoint
        self._spans: queue.Queue[tuple[Span, int]] = queue.Queue(max_waiting)  # with characters
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._characters = 0  # of the spans that wait
        self._is_refused = False
        self.sent = self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def take(self, span: Span) -> None:
        """Queue a span without waiting."""
        characters = _characters(span)
        with self._lock:
            fits = self._characters + characters <= MAX_WAITING_CHARACTERS
            fits = fits and not self._spans.full()
            if fits:
                self._spans.put_nowait((span, characters))
                self._characters += characters
        if not fits:
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
        while True:
            batch, is_full = self._batch()
            if not batch:
                return
            sent = self._post(batch)
            self._count(len(batch) if sent else 0, 0 if sent else len(batch))
            for _ in batch:
                self._spans.task_done()
            if not is_full:
                self._ended.wait(GATHER_S)

    def _batch(self) -> tuple[list[Span], bool]:
        """Return at least one span, and whether no more fit into a request.

        None are returned after the last one was sent and the sender was closed.
        """
        while not self._spans.qsize():
            if self._ended.wait(0.1) and not self._spans.qsize():
                return [], False
        batch: list[Span] = []
        total, is_full = 0, False
        while not is_full and self._spans.qsize():
            span, characters = self._spans.get()
            batch.append(span)
            total += characters
            is_full = len(batch) == BATCH or total >= BATCH_CHARACTERS
        with self._lock:
            self._characters -= total
        return batch, is_full

    def _post(self, batch: Sequence[Span]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export([self._make(span) for span in batch])
        except Exception as error:  # whatever a library makes of a collector: spans are dropped
            log.info("Spans not sent", error=f"{type(error).__name__}: {error}")
            return False
        return bool(result is SpanExportResult.SUCCESS)

    def _note_refusal(self, response: Any, *_: Any, **__: Any) -> None:
        """Log the first answer that repeating the request would not change."""
        status = response.status_code
        if self._is_refused or not 400 <= status < 500 or status in TRANSIENT:
            return
        self._is_refused = True
        log.warning(
            "Collector refuses spans, which are dropped",
            status=status,
            endpoint=self._endpoint.partition("?")[0],
            answer=response.text[:SHOWN],
            hint=REFUSALS.get(status, "see the collector's answer"),
        )

    def _count(self, sent: int, dropped: int) -> None:
        with self._lock:
            self.sent += sent
            self.dropped += dropped
        metrics.SPANS.labels(status="sent").inc(sent)
        metrics.SPANS.labels(status="dropped").inc(dropped)


def _characters(span: Span) -> int:
    return sum(len(value) for value in span.fields.values() if isinstance(value, str))


def _exporter(endpoint: str, post_s: float, hook: Callable[..., None], *, gzip: bool) -> Any:
    """Return an exporter that passes each answer to the hook. Raises ConfigError."""
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise ConfigError(
            f"tracing.endpoint: {endpoint!r} is not an http(s) URL",
            hint="use a URL such as http://127.0.0.1:4318/v1/traces",
        )
    try:
        import requests
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            "tracing.endpoint is set, but OpenTelemetry is not installed",
            hint="run `pip install 'agentrl-system[tracing]'`",
        ) from error
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # drops are counted and told
    session = requests.Session()
    session.hooks["response"].append(hook)
    compression = Compression.Gzip if gzip else None  # None: as the environment says
    return OTLPSpanExporter(
        endpoint=endpoint, timeout=post_s, compression=compression, session=session
    )


def attributes(span: Span, run: str) -> Mapping[str, Field]:
    """Return the attributes of a span, with OpenTelemetry's names (`gen_ai.*`) where it has any."""
    own = {GEN_AI.get(name, f"agentrl.{name}"): value for name, value in span.fields.items()}
    if operation := OPERATIONS.get(span.name):
        own["gen_ai.operation.name"] = operation
    if span.name == "episode":
        own["gen_ai.agent.name"] = run
    return own


def _converter(own: Mapping[str, str]) -> Any:
    """Return a converter from our spans to OpenTelemetry's."""
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags
    except ImportError:
        return None  # `_exporter` says so
    resource, sampled = Resource(dict(own)), TraceFlags(TraceFlags.SAMPLED)
    run = own.get("agentrl.run", "")

    def make(span: Span) -> ReadableSpan:
        trace = span.mark.trace
        parent = SpanContext(trace, span.parent, is_remote=True, trace_flags=sampled)
        failed = "error" in span.fields
        return ReadableSpan(
            name=span.name,
            context=SpanContext(trace, span.mark.span, is_remote=False, trace_flags=sampled),
            parent=parent if span.parent else None,
            resource=resource,
            attributes=attributes(span, run),
            status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
            start_time=round(span.began * 1e9),
            end_time=round(span.ended * 1e9),
        )

    return make
