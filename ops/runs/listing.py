"""`agentrl runs`: lists the runs of a database."""

import msgspec

from agentrl.core.types import RunState
from agentrl.db.queries.progress import percent_by_task
from agentrl.db.transitions.lifecycle import RunSummary
from agentrl.ops.runs.lifecycle import RunPlace, summaries
from agentrl.ops.tables import console, plain


def runs(where: RunPlace, *, as_json: bool) -> None:
    """Print the runs, newest first. Raises StoreError."""
    found = summaries(where)
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    table = plain("run", "state", "version", "updates", "episodes", "recent success", "age")
    for run in found:
        table.add_row(run.name, *_cells(run))
    console().print(table if found else "no run yet; start one with: agentrl up CONFIG")


def ago(seconds: float) -> str:
    """Format a duration in its largest unit: 40 s, 12 min, 3 h, 9 d."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _cells(run: RunSummary) -> list[str]:
    success = percent_by_task(run.success)
    state = f"{run.state} ({run.reason})" if run.reason else run.state
    if run.state == RunState.RUNNING and not run.alive:
        state = "no process runs"
    return [state, str(run.version), str(run.updates), str(run.episodes), success, ago(run.age_s)]
