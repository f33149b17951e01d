"""Traces of attempts across all processes, without a field in any message.

    episode ─┬─ send      dispatcher      step ─┬─ policy ── completion   policy server
             ├─ queued    worker                └─ environment ── session env server
             ├─ start     worker ── session
             ├─ step …    worker
             ├─ publish   worker
             ├─ record    recorder
             └─ train     trainer

The trace id and root span id of an attempt are computed from (run, episode, fence), so every
process knows them; servers get them in the W3C header `traceparent`. Nothing is recorded until
core/telemetry/otlp.py sets a sink.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from secrets import randbits

Field = str | int | float
PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01\Z")


@dataclass(frozen=True, slots=True)
class SpanContext:
    """The ids of a span. `trace`: 128 bits; `span`: 64 bits, not 0."""

    trace: int
    span: int

    def traceparent(self) -> str:
        """Return the W3C Trace Context header; the sampled flag is always set."""
        return f"00-{self.trace:032x}-{self.span:016x}-01"


@dataclass(frozen=True, slots=True)
class Span:
    """A span from `began` to `ended` (seconds since the epoch). `parent`: 0 for a root span."""

    name: str
    mark: SpanContext
    parent: int
    began: float
    ended: float
    fields: dict[str, Field]


@dataclass(frozen=True, slots=True)
class Sink:
    """Receiver of spans. `share`: share of traced attempts. `flush`: sends queued spans within a
    time. `messages`: whether spans hold the conversation.
    """

    take: Callable[[Span], None]
    share: float
    flush: Callable[[float], None]
    messages: bool = False


_sink: Sink | None = None
_current: ContextVar[SpanContext | None] = ContextVar("mark", default=None)
_root_fields: ContextVar[dict[str, Field] | None] = ContextVar("root_fields", default=None)


def set_sink(sink: Sink | None) -> None:
    """Set the receiver of spans; None: spans are not recorded."""
    global _sink  # noqa: PLW0603 - one process, one sink
    _sink = sink


def flush(timeout_s: float) -> None:
    """Send queued spans, for a process that is about to exit immediately."""
    if _sink is not None:
        _sink.flush(timeout_s)


def root_context(run_id: str, episode_id: str, fence: int) -> SpanContext:
    """Return the root span of an attempt. Each fence has its own trace."""
    digest = hashlib.sha256(f"{run_id}\0{episode_id}\0{fence}".encode()).digest()
    trace, span = int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])
    return SpanContext(trace or 1, span or 1)


def attempt_context(run_id: str, episode_id: str, fence: int) -> SpanContext | None:
    """Return the root span, or None if the attempt is not traced. All processes decide alike."""
    if _sink is None:
        return None
    mark = root_context(run_id, episode_id, fence)
    return mark if (mark.trace & (1 << 53) - 1) / (1 << 53) < _sink.share else None


def headers() -> dict[str, str]:
    """Return the request headers that connect the server's spans to this trace."""
    mark = _current.get()
    return {} if mark is None else {"traceparent": mark.traceparent()}


@contextmanager
def attempt(mark: SpanContext | None) -> Iterator[dict[str, Field]]:
    """Record the root span of a traced attempt; spans inside this context belong to it."""
    with _open_span("episode", mark, 0) as fields:
        before = _root_fields.set(fields)
        try:
            yield fields
        finally:
            _root_fields.reset(before)


def annotate_attempt(**fields: Field) -> None:
    """Add fields to the root span of this thread's attempt."""
    root = _root_fields.get()
    if root is not None:
        root.update(fields)


def wants_messages() -> bool:
    """Return whether spans of this thread are recorded with the conversation."""
    return _sink is not None and _sink.messages and _current.get() is not None


@contextmanager
def span(name: str) -> Iterator[dict[str, Field]]:
    """Record a span of this thread. Fields that are added inside are sent with it."""
    parent = _current.get()
    if parent is None:
        yield {}
        return
    with _open_span(name, SpanContext(parent.trace, _new_span_id()), parent.span) as fields:
        yield fields


@contextmanager
def continue_trace(name: str, traceparent: str | None) -> Iterator[dict[str, Field]]:
    """Record the server's span of a request with a trace header."""
    found = PARENT.match(traceparent or "") if _sink is not None else None
    mark = SpanContext(int(found[1], 16), _new_span_id()) if found else None
    with _open_span(name, mark, int(found[2], 16) if found else 0) as fields:
        yield fields


def record_span(
    name: str, parent: SpanContext | None, began: float, ended: float, **fields: Field
) -> None:
    """Record a span that was measured elsewhere (seconds since the epoch)."""
    if parent is not None and _sink is not None:
        mark = SpanContext(parent.trace, _new_span_id())
        _sink.take(Span(name, mark, parent.span, began, ended, fields))


@contextmanager
def _open_span(name: str, mark: SpanContext | None, parent: int) -> Iterator[dict[str, Field]]:
    fields: dict[str, Field] = {}
    if mark is None or _sink is None:
        yield fields
        return
    before, began, clock = _current.set(mark), time.time(), time.perf_counter()
    try:
        yield fields
    except BaseException as error:
        fields["error"] = type(error).__name__
        raise
    finally:
        _current.reset(before)
        if (sink := _sink) is not None:
            ended = began + time.perf_counter() - clock
            sink.take(Span(name, mark, parent, began, ended, fields))


def _new_span_id() -> int:
    return randbits(64) or 1
