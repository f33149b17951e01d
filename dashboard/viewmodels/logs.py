"""What the page *Processes* shows of log files: plain values, no Streamlit."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.core import config_loading
from agentrl.core.errors import ConfigError
from agentrl.db.models.runs import Run
from agentrl.db.store import Store

MAX_BYTES = 1 << 20  # of the end of a file
LINES = 1_000  # of the table
SEVERE = frozenset({"warning", "error", "critical"})
COLUMNS = ("timestamp", "level", "event")
COMMON = frozenset({*COLUMNS, "run", "process"})  # not repeated among the fields of a line


def log_files(store: Store, run_id: str) -> list[Path]:
    """Return the log files of the run's processes on this machine, by name.

    They are in `logs` under `run.home`, which also holds the database unless it is a server.
    """
    with store.read() as session:
        run = session.get_one(Run, run_id)
        written, name = run.config, run.name
    homes = []
    if store.engine.dialect.name == "sqlite" and store.engine.url.database:
        homes.append(Path(store.engine.url.database).parent)
    with suppress(ConfigError):
        homes.append(config_loading.from_json(written, f"run {name}").home())
    for home in homes:
        if found := sorted((home / "logs").glob("*.log*")):
            return found
    return []


def read_end(path: Path) -> list[str]:
    """Return the last lines of a file, at most MAX_BYTES; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return lines[1:] if size > MAX_BYTES else lines  # the first is cut


def log_rows(
    lines: Sequence[str], run: str, *, severe: bool, words: str = ""
) -> list[dict[str, Any]]:
    """Return a row per log line of the run, newest first, at most LINES.

    `severe`: only warnings and errors. `words`: a text that the line contains, in any case.
    """
    found: list[dict[str, Any]] = []
    for line in reversed(lines):
        if words.lower() in line.lower():
            found += [row for row in _row(line, run) if not severe or row["level"] in SEVERE]
        if len(found) >= LINES:
            break
    return found


def _row(line: str, run: str) -> Iterator[dict[str, Any]]:
    """Yield the line as a row, unless another run wrote it. A line that is not JSON is a text."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        if line.strip():
            yield {"time, UTC": "", "level": "", "event": line, "fields": ""}
    elif fields.get("run", run) == run:
        others = (f"{key}={value}" for key, value in fields.items() if key not in COMMON)
        time, level, event = (str(fields.get(name, "")) for name in COLUMNS)
        yield {
            "time, UTC": time[:19].replace("T", " "),
            "level": level,
            "event": event,
            "fields": " ".join(others),
        }
