"""What the page *Run* shows, read in one transaction: plain values, no Streamlit."""

from dataclasses import dataclass

from core.statistics import interval
from core.types import RunState
from db import alarms, lifecycle, progress, registry
from db.alarms import Raised
from db.lifecycle import UpdateSummary
from db.models import Run
from db.progress import Totals
from db.registry import LivePolicy
from db.store import Store

BINS = 24  # of the success curve
UPDATES = 50  # rows of the updates' table
LATE_GROUPS = 256  # that closed last, whose steps and bodies are looked at


@dataclass(frozen=True, slots=True)
class Point:
    """Success of a task's episodes that ended in one slice of time; `low`, `high`: 95 %."""

    percent: float
    task: str
    success: float
    low: float
    high: float
    episodes: int


@dataclass(frozen=True, slots=True)
class RunView:
    """A run at a moment."""

    name: str
    state: RunState
    reason: str
    forked_from: str | None
    totals: Totals
    curve: list[Point]
    recent: dict[str, float]
    updates: list[UpdateSummary]
    mix: dict[str, int]
    groups: dict[str, int]
    policies: list[LivePolicy]
    disagreements: list[tuple[str, str]]
    alarms: list[Raised]


def look(store: Store, run_id: str) -> RunView:
    """The run as it stands."""
    with store.read() as session:
        run = session.get_one(Run, run_id)
        return RunView(
            name=run.name,
            state=RunState(run.state),
            reason=run.reason,
            forked_from=run.forked_from,
            totals=progress.totals(session, run_id),
            curve=[point(*row) for row in progress.success_over_time(session, run_id, BINS)],
            recent=progress.recent_success(session, run_id, lifecycle.RECENT_UPDATES),
            updates=lifecycle.latest_updates(session, run_id, UPDATES),
            mix=progress.policy_mix(session, run_id, LATE_GROUPS),
            groups=progress.groups_by_state(session, run_id),
            policies=registry.live_policies(session, run_id),
            disagreements=progress.disagreements(session, run_id, LATE_GROUPS),
            alarms=alarms.raised(session, run_id),
        )


def point(place: int, task: str, success: float, episodes: int) -> Point:
    """A slice of the curve, in the middle of its time."""
    low, high = interval(round(success * episodes), episodes)
    return Point(100 * (place + 0.5) / BINS, task, success, low, high, episodes)
