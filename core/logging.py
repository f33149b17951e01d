"""Structured logs: constant sentences with fields, as JSON lines or coloured text."""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO, cast

import structlog


class BestEffortStream:
    """A stream that survives a full disk, or its reader: it gets a gap, the process continues.

    The number of missing lines is written at the end of the gap.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._missing = 0

    def write(self, text: str) -> int:
        try:
            if self._missing and text.strip():
                self._stream.write(
                    f'{{"event": "Log lines are missing", "count": {self._missing}}}\n'
                )
                self._missing = 0
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._missing += bool(text.strip())
        return len(text)

    def flush(self) -> None:
        """Do nothing: every write is flushed."""

    def isatty(self) -> bool:
        return self._stream.isatty()

    @property
    def encoding(self) -> str:
        return self._stream.encoding


_own: dict[str, str] = {}  # of every line: bound context is one thread's


def configure(process: str, *, level: str = "INFO", form: str = "auto", **own: str) -> None:
    """Log to stderr as `process`. Each process's entry point calls this once.

    `form`: json, text, or auto (text on a terminal, otherwise json); `own`: fields of every line.
    """
    text = sys.stderr.isatty() if form == "auto" else form == "text"
    renderer: Any = structlog.dev.ConsoleRenderer() if text else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            _of_process,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, BestEffortStream(sys.stderr))),
    )
    _own.clear()
    bind_process(process=process, **own)


def bind_process(**fields: str) -> None:
    """Add fields to every further line of this process, in all threads."""
    _own.update(fields)


def _of_process(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {**_own, **line}


def configure_unless_done() -> None:
    """Log warnings to stderr, for code that runs before an entry point configures logging."""
    if not structlog.is_configured():
        configure("agentrl", level="WARNING")


def get_logger() -> structlog.stdlib.BoundLogger:
    """Return a logger. `group_id`, `episode_id` and `fence` are bound once through contextvars."""
    return cast(structlog.stdlib.BoundLogger, structlog.get_logger())
