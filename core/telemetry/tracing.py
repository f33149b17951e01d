"""Traces of attempts, across every process that takes part, without a field in any message.

    episode ─┬─ send      dispatcher      step ─┬─ policy ── completion   policy server
             ├─ queued    worker                └─ environment ── session env server
             ├─ start     worker ── session
             ├─ step …    worker
             ├─ publish   worker
             ├─ record    recorder
             └─ train     trainer

An attempt's trace and root span follow from (run, episode, fence), so every process knows them;
servers hear theirs in W3C's `traceparent`. Until core/telemetry/otlp.py gives a sink, nothing is
recorded.
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
class Mark:
    """A span's place. `trace`: 128 bits; `span`: 64, not 0."""

    trace: int
    span: int

    def traceparent(self) -> str:
        """As the header of W3C's Trace Context says it; always sampled."""
        return f"00-{self.trace:032x}-{self.span:016x}-01"


@dataclass(frozen=True, slots=True)
class Span:
    """What took from `began` to `ended`, seconds since the epoch. `parent`: 0 for a root."""

    name: str
    mark: Mark
    parent: int
    began: float
    ended: float
    fields: dict[str, Field]


@dataclass(frozen=True, slots=True)
class Sink:
    """Where spans go. `share`: of attempts that are traced; `flush`: what is held, in so many s."""

    take: Callable[[Span], None]
    share: float
    flush: Callable[[float], None]


_sink: Sink | None = None
_current: ContextVar[Mark | None] = ContextVar("mark", default=None)


def send_to(sink: Sink | None) -> None:
    """From now on spans go there; None: nowhere."""
    global _sink  # noqa: PLW0603 - one process, one sink
    _sink = sink


def flush(timeout_s: float) -> None:
    """Send what is held, for a process that is about to end without further ado."""
    if _sink is not None:
        _sink.flush(timeout_s)


def root(run_id: str, episode_id: str, fence: int) -> Mark:
    """The root span of an attempt. Another fence is another trace."""
    digest = hashlib.sha256(f"{run_id}\0{episode_id}\0{fence}".encode()).digest()
    trace, span = int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])
    return Mark(trace or 1, span or 1)


def of_attempt(run_id: str, episode_id: str, fence: int) -> Mark | None:
    """Its root, None where it is not traced; every process decides alike."""
    if _sink is None:
        return None
    mark = root(run_id, episode_id, fence)
    return mark if (mark.trace & (1 << 53) - 1) / (1 << 53) < _sink.share else None


def headers() -> dict[str, str]:
    """What a request is sent with, for its server's spans."""
    mark = _current.get()
    return {} if mark is None else {"traceparent": mark.traceparent()}


@contextmanager
def attempt(mark: Mark | None) -> Iterator[dict[str, Field]]:
    """The root span, of an attempt that is traced; `span`s within belong to it."""
    with _recorded("episode", mark, 0) as fields:
        yield fields


@contextmanager
def span(name: str) -> Iterator[dict[str, Field]]:
    """A part of what this thread is at. Fields that are added within are sent with it."""
    parent = _current.get()
    if parent is None:
        yield {}
        return
    with _recorded(name, Mark(parent.trace, _new()), parent.span) as fields:
        yield fields


@contextmanager
def served(name: str, traceparent: str | None) -> Iterator[dict[str, Field]]:
    """A server's part of a request that came with a header."""
    found = PARENT.match(traceparent or "") if _sink is not None else None
    mark = Mark(int(found[1], 16), _new()) if found else None
    with _recorded(name, mark, int(found[2], 16) if found else 0) as fields:
        yield fields


def told(name: str, parent: Mark | None, began: float, ended: float, **fields: Field) -> None:
    """A part of an attempt that was measured elsewhere; seconds since the epoch."""
    if parent is not None and _sink is not None:
        mark = Mark(parent.trace, _new())
        _sink.take(Span(name, mark, parent.span, began, ended, fields))


@contextmanager
def _recorded(name: str, mark: Mark | None, parent: int) -> Iterator[dict[str, Field]]:
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


def _new() -> int:
    return randbits(64) or 1
