"""Structured logs: constant sentences with fields, JSON lines, or coloured on a terminal."""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO, cast

import structlog


class Willing:
    """A stream of logs that a full disk makes no error of: a process goes on, its log has a gap.

    How many lines are missing is written where the gap ends.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._missing = 0

    def write(self, text: str) -> int:
        try:
            if self._missing and text.strip():
                self._stream.write(
                    f'{{"event": "log lines are missing", "count": {self._missing}}}\n'
                )
                self._missing = 0
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._missing += bool(text.strip())
        return len(text)

    def flush(self) -> None:
        """Every write was flushed."""


_own: dict[str, str] = {}  # of every line: bound context is one thread's


def configure(process: str, *, level: str = "INFO", form: str = "auto", **own: str) -> None:
    """Log to stderr as `process`; called once by each process's entry point.

    `form`: json, text, or auto: text on a terminal alone; `own`: as `bind_process`.
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
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, Willing(sys.stderr))),
    )
    _own.clear()
    bind_process(process=process, **own)


def bind_process(**fields: str) -> None:
    """Fields of every further line of this process, whatever thread writes it."""
    _own.update(fields)


def _of_process(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {**_own, **line}


def configure_unless_done() -> None:
    """For what may be told before an entry point has configured: to stderr, from warnings on."""
    if not structlog.is_configured():
        configure("agentrl", level="WARNING")


def get_logger() -> structlog.stdlib.BoundLogger:
    """A logger; `group_id`, `episode_id`, `fence` are bound once through contextvars."""
    return cast(structlog.stdlib.BoundLogger, structlog.get_logger())
