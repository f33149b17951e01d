"""Reports errors and repeated warnings from the logs of a run's processes.

logs/*.log ─▶ new errors, warnings said several times ─▶ a line for people, at most once a minute
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.core.telemetry import outages

OFTEN, WITHIN_S = 3, 30.0  # the same warning so many times in so many seconds is worth a word
AGAIN_S = 60.0  # before the same is told again
MOST = 1024 * 1024  # bytes of one log at one look; of more, the end
WARNING, ERRORS = "warning", ("error", "critical")
WAITING = (outages.AWAY, outages.AVAILABLE)
CAUSES = ("error", "said", "reason", "detail", "service")  # fields that say why


@dataclass(slots=True)
class _Event:
    """One sentence of one process: its recent (time, cause), and when it was last reported."""

    recent: list[tuple[float, str]] = field(default_factory=list)
    reported_at: float | None = None


class LogWatcher:
    """Reads what is added to the logs of a folder; used by one thread."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._offsets = {path: path.stat().st_size for path in folder.glob("*.log")}
        self._events: dict[tuple[str, str], _Event] = {}

    def look(self) -> list[str]:
        """Return the lines that people should see now."""
        lines: list[str] = []
        for path in sorted(self._folder.glob("*.log")):
            newest: dict[str, Mapping[str, Any]] = {}
            for row in self._rows(path):
                if row["event"] in WAITING or row.get("level") in (WARNING, *ERRORS):
                    newest[str(row["event"])] = row
                    event = self._events.setdefault((path.stem, str(row["event"])), _Event())
                    event.recent.append((self._clock(), _cause(row)))
            lines += [self._line(path.stem, event_name, row) for event_name, row in newest.items()]
        return list(filter(None, lines))

    def _rows(self, path: Path) -> Iterator[Mapping[str, Any]]:
        """The objects of the lines that are whole and new."""
        try:
            with path.open("rb") as log:
                size = path.stat().st_size
                start = self._offsets.get(path, 0)
                start = 0 if start > size else start  # it was moved aside
                log.seek(max(start, size - MOST))
                text = log.read(MOST)
                end = log.tell() - len(text) + text.rfind(b"\n") + 1
        except OSError:
            return
        self._offsets[path] = end
        for line in text[: text.rfind(b"\n") + 1].splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # of a library, or text
                continue
            if isinstance(row, dict) and "event" in row:
                yield row

    def _line(self, name: str, event_name: str, row: Mapping[str, Any]) -> str:
        """Return the line about a sentence that was logged again; empty for none."""
        now, event = self._clock(), self._events[name, event_name]
        event.recent = [each for each in event.recent if now - each[0] < WITHIN_S]
        reported = event.reported_at is not None and now - event.reported_at < AGAIN_S
        rare = row.get("level") == WARNING and len(event.recent) < OFTEN
        if event_name not in WAITING and (reported or rare):
            return ""
        event.reported_at = now
        often = f", {len(event.recent)} times" if len(event.recent) > 1 else ""
        causes = [cause for _, cause in event.recent]
        why = causes[-1]
        if row.get("alarm"):
            why = f"{', '.join(dict.fromkeys(causes))}; training goes on (docs/alarms.md)"
        return f"{name}: {event_name}{often}{f': {why}' if why else ''}"


def _cause(row: Mapping[str, Any]) -> str:
    """Return an alarm with its task, or the first line of the field that says why."""
    if row.get("alarm"):
        return f"{row['alarm']} of {row['task']}" if row.get("task") else str(row["alarm"])
    why = next((str(row[key]).partition("\n")[0] for key in CAUSES if row.get(key)), "")
    return f"{why}, raised at {row['raised_at']}" if row.get("raised_at") else why
