"""How a process says that it waits for a service: a sentence in its log, and a gauge.

Retry, broker connection ─▶ log, agentrl_service_away
                             ├──▶ `agentrl up`, `agentrl status`, the dashboard: of this machine
                             └──▶ `current_outages` ─▶ a row, if no supervisor reads the log
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics

AWAY = "Waiting for a service that is unavailable"
AVAILABLE = "Service is available again"
REMIND_S = 60.0  # between two log lines of one outage
STALE_S = 300.0  # after its last line, an outage is no longer reported: its process may have died
MAX_BYTES = 1 << 17  # of the end of a log

log = get_logger()
_current: dict[str, tuple[float, float, str]] = {}  # by service: since when, last told when, why


@dataclass(frozen=True, slots=True)
class Outage:
    """A process that waits for a service. `waited_s`: when it last said so."""

    process: str
    service: str
    waited_s: float
    error: str

    def __str__(self) -> str:
        return f"{self.process} waits for {self.service} ({self.waited_s:.0f} s): {self.error}"


def report_away(service: str, waited_s: float, error: str) -> None:
    """Say that the process waits for a service, and why; call it again every REMIND_S seconds.

    Of `error`, only the first line is kept.
    """
    error = error.strip().partition("\n")[0]
    metrics.AWAY.labels(name=service).set(1)
    told_at = time.monotonic()
    _current[service] = told_at - waited_s, told_at, error
    log.warning(AWAY, service=service, waited_s=round(waited_s, 1), error=error)


def report_available(service: str, waited_s: float) -> None:
    """Say that the process waits for the service no longer."""
    metrics.AWAY.labels(name=service).set(0)
    _current.pop(service, None)
    log.info(AVAILABLE, service=service, waited_s=round(waited_s, 1))


def current_outages(process: str) -> list[Outage]:
    """Return what this process waits for, and has repeated lately. `process`: its name."""
    now = time.monotonic()
    return [
        Outage(process, service, now - since, error)
        for service, (since, told_at, error) in sorted(_current.copy().items())
        if now - told_at < STALE_S
    ]


def read_outages(logs: Iterable[Path], now: float | None = None, run: str = "") -> list[Outage]:
    """Return what processes wait for, as the ends of their log files say.

    `logs`: files named after their processes. `now`: seconds since the epoch. `run`: leave out
    lines of other runs of the same home; empty: of none.
    """
    now = time.time() if now is None else now
    found: dict[tuple[str, str], Outage] = {}
    for path in sorted(logs):
        for row in _rows(path, now - STALE_S):
            if run and row.get("run", run) != run:
                continue
            key = path.stem, str(row.get("service"))
            found.pop(key, None)
            if row["event"] == AWAY:
                waited_s = float(row.get("waited_s") or 0.0)
                found[key] = Outage(*key, waited_s, str(row.get("error", "")))
    return list(found.values())


def _rows(path: Path, since: float) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of a log about outages, written after `since`."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        if AWAY.encode() not in line and AVAILABLE.encode() not in line:
            continue
        with suppress(ValueError, TypeError, KeyError):  # cut, or of another program
            row = json.loads(line)
            written = datetime.fromisoformat(row["timestamp"]).timestamp()
            if row["event"] in (AWAY, AVAILABLE) and written >= since:
                yield row
