"""`agentrl envs check` and `envs audit`: print each figure of tasks as soon as it is known.

tasks ─▶ experts, chance, splits ─▶ a row each, exit code 1 for a ✗
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from agentrl.core import logging
from agentrl.core.errors import AgentRLError, ItemError
from agentrl.envs import registry
from agentrl.envs.tasks import datasets, task_measurements
from agentrl.envs.tasks.audit import AuditSettings, audit_figures
from agentrl.envs.tasks.check import Figure, Settings

MARKS = {True: "✓", False: "✗", None: "–"}
UNMARKED = " "  # a figure that nothing is wanted of
GENERATED = "generated"  # the origin that is meant where none is given
WIDTHS = (8, 36, 44, 12)  # task, figure, value, wanted


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """`tasks`: empty: all. `origin`: use the items of a dataset instead of generated ones."""

    tasks: Sequence[str]
    origin: str
    settings: Settings
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """`seconds`: since the previous row."""

    task: str
    figure: Figure
    seconds: float


def check(request: CheckRequest) -> bool:
    """Print the figures; return whether all are within their bounds.

    Raises ItemError for an unknown task, origin or data folder before anything is measured.
    """
    logging.configure("envs", level="WARNING")
    tasks = request.tasks or registry.names()
    for task in tasks:
        registry.place(task)
    if request.settings.data:
        datasets.folder(request.settings.data)
    if request.origin == GENERATED:
        request = replace(request, origin="")
    if request.origin:
        tasks = _having(request.origin, request.tasks)
    return _print_rows(_rows(tasks, request), as_json=request.as_json)


def audit(
    source: str, options: Mapping[str, Any], settings: AuditSettings, *, as_json: bool
) -> bool:
    """Print the figures of a task or ADAPTER:ARGUMENT; return whether all are within their bounds.

    Raises ItemError.
    """
    logging.configure("envs", level="WARNING")
    rows = _timed_rows(source, audit_figures(source, options, settings))
    return _print_rows(rows, as_json=as_json)


def _print_rows(rows: Iterator[Row], *, as_json: bool) -> bool:
    """Print rows as they come, or one JSON array; return whether none is out of its bounds."""
    printed = []
    for row in rows:
        printed.append(row)
        if not as_json:
            print(_line(row), flush=True)
    if as_json:
        print(msgspec.json.encode([_plain(row) for row in printed]).decode())
    return all(row.figure.ok is not False for row in printed)


def _having(origin: str, tasks: Sequence[str]) -> Sequence[str]:
    """Return the named tasks, which must have the origin; without names, all tasks that have it."""
    for task in tasks:
        registry.source(task, {"origin": origin})
    if tasks:
        return tasks
    names, errors = [], []
    for task in registry.names():
        try:
            registry.source(task, {"origin": origin})
            names.append(task)
        except AgentRLError as error:
            errors.append(f"{error}")
    if not names:
        raise ItemError(
            f"no task has the origin {origin}: {errors[0]}",
            hint="choose an origin that `agentrl envs list` shows",
        )
    return names


def _rows(tasks: Sequence[str], request: CheckRequest) -> Iterator[Row]:
    for task in tasks:
        yield from _timed_rows(task, _figures(task, request))


def _timed_rows(task: str, figures: Iterator[Figure]) -> Iterator[Row]:
    """Yield a task's figures with their times; the terminal shows that one is being measured."""
    began = time.perf_counter()
    _tell(f"{task}: measuring …")
    for figure in figures:
        now = time.perf_counter()
        _tell("")
        yield Row(task, figure, now - began)
        _tell(f"{task}: measuring …")
        began = now
    _tell("")


def _figures(task: str, request: CheckRequest) -> Iterator[Figure]:
    if request.origin:
        return task_measurements.origin_figures(task, request.origin, request.settings)
    return task_measurements.all_figures(task, request.settings)


def _line(row: Row) -> str:
    figure = row.figure
    cells = (row.task, figure.name, figure.value, figure.wanted)
    padded = (cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True))
    mark = MARKS[figure.ok] if figure.wanted or not figure.ok else UNMARKED
    return f"{mark}  {'  '.join(padded)}  {row.seconds:7.1f} s"


def _plain(row: Row) -> Mapping[str, object]:
    return {"task": row.task, **asdict(row.figure), "seconds": round(row.seconds, 3)}


def _tell(text: str) -> None:
    """Show the current activity in one terminal line, replaced by the next text."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
