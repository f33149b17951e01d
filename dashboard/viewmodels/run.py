"""What the page *Run* shows, read in one transaction each: plain values, no Streamlit."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from agentrl.core import config_loading
from agentrl.core.errors import ConfigError
from agentrl.core.telemetry.outages import Outage, read_outages
from agentrl.core.types import RUN_OVER, RunState
from agentrl.dashboard.estimates import Rule, stop_rules
from agentrl.dashboard.viewmodels.logs import log_files
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Update
from agentrl.db.queries import curves, delays, progress
from agentrl.db.queries.curves import Point
from agentrl.db.queries.delays import Delay, Pace, Waiting
from agentrl.db.queries.progress import LearnedTotals
from agentrl.db.registry import checkpoints, leases, outages
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.registry.leases import Lease
from agentrl.db.store import Store
from agentrl.db.transitions import alarms, item_streams, lifecycle, runs
from agentrl.db.transitions.alarms import RaisedAlarm

POINTS = 24  # of a curve
POINT_GROUPS = 64  # that closed last before each of its points
EACH_POINT = (
    f"Each point covers the last {POINT_GROUPS} groups of all tasks that closed before the update. "
    "Neighbouring points may share groups."
)
LATE_GROUPS = 256  # that closed last
RECENT = (
    "Recent success: the share of finished episodes with a score of at least 1, trained on or not, "
    f"in the groups closed since the last {progress.RECENT_UPDATES} updates began, without those "
    "that the end of the run cancelled."
)
UPDATES = 50  # rows of the updates' table
DELAY_UPDATES = 16  # updates whose members' time is told apart
WINDOW_S = 300.0  # of the pace
NOT_STARTED, IDLE = "not started", "no process runs"
LEASES = 50  # of workers, and as many of policy servers


@dataclass(frozen=True, slots=True)
class Head:
    """The head of every page of a run. `begun`: a process has worked for it. `alive`: one does."""

    name: str
    state: RunState
    reason: str
    forked_from: str | None
    begun: bool
    alive: bool

    @property
    def over(self) -> bool:
        return self.state in RUN_OVER

    @property
    def is_working(self) -> bool:
        """Return whether a running run has a process, or is in another state."""
        return self.alive or self.state != RunState.RUNNING

    @property
    def shown_state(self) -> str:
        if self.is_working:
            return self.state.value
        return IDLE if self.begun else NOT_STARTED


@dataclass(frozen=True, slots=True)
class Now:
    """The current state of a run. `recent`: by task, of recent groups. `seconds`: its run time.

    `idle`: seconds since trainer and recorder last did something. `outages`: services that
    processes wait for.
    """

    head: Head
    version: int
    seconds: float
    learned: LearnedTotals
    pace: Pace
    rules: list[Rule]
    alarms: list[RaisedAlarm]
    recent: list[Point]
    leases: list[Lease]
    idle: dict[str, float]
    outages: list[Outage]


@dataclass(frozen=True, slots=True)
class Flow:
    """Queues and delays. `mix`: steps by track.

    `staleness`: mean updates between sampling and training, of fresh and lagged steps of the last
    batch.
    """

    over: bool
    waiting: Waiting
    mix: dict[str, int]
    staleness: dict[str, float]
    delays: list[Delay]
    policies: list[LivePolicy]
    updates: list[Update]


def read_head(store: Store, run_id: str) -> Head:
    """Read the head of an existing run."""
    with store.read() as session:
        return head_of(session, session.get_one(Run, run_id))


def head_of(session: Session, run: Run) -> Head:
    begun = bool(run.version or run.dispatcher_until)
    alive = bool(lifecycle.live_processes(session, run.run_id))
    return Head(run.name, RunState(run.state), run.reason, run.forked_from, begun, alive)


def read_now(store: Store, run_id: str) -> Now:
    """Read the current state of the run."""
    files = log_files(store, run_id)
    with store.read() as session:
        run = session.get_one(Run, run_id)
        seconds = progress.ran_s(session, run)
        recent = curves.recent_points(session, run_id)
        return Now(
            head=head_of(session, run),
            version=run.version,
            seconds=seconds,
            learned=progress.learned_totals(session, run_id),
            pace=delays.recent_pace(session, run_id, WINDOW_S),
            rules=_rules(session, run, seconds),
            alarms=alarms.raised_alarms(session, run_id),
            recent=recent,
            leases=leases.leases(session, run_id, LEASES),
            idle=leases.idle_s(session, run_id),
            outages=read_outages((file for file in files if file.suffix == ".log"), run=run.name)
            + outages.read_outages(session, run_id),
        )


def read_flow(store: Store, run_id: str) -> Flow:
    """Read queues and delays of the run."""
    with store.read() as session:
        return Flow(
            over=runs.run_state(session, run_id) in RUN_OVER,
            waiting=delays.waiting_counts(session, run_id),
            mix=progress.policy_mix(session, run_id, LATE_GROUPS),
            staleness=progress.staleness(session, run_id),
            delays=delays.delays(session, run_id, DELAY_UPDATES),
            policies=checkpoints.live_policies(session, run_id),
            updates=lifecycle.latest_updates(session, run_id, UPDATES),
        )


def read_curve(store: Store, run_id: str) -> list[Point]:
    """Read success and reward by task and version."""
    with store.read() as session:
        return curves.success_by_version(session, run_id, POINTS, POINT_GROUPS)


def task_names(store: Store) -> list[str]:
    """Return the tasks of all runs, whose positions determine their colours."""
    with store.read() as session:
        return runs.configured_tasks(session)


def _rules(session: Session, run: Run, seconds: float) -> list[Rule]:
    """Return the stop rules; None if the run is over or has another version's configuration."""
    if run.state in RUN_OVER:
        return []
    try:
        config = config_loading.from_json(run.config, f"run {run.name}")
    except ConfigError:
        return []
    fewest = config.trainer.min_groups or config.dispatch.groups_per_update
    shares = item_streams.success_of_tasks(session, run.run_id, config.tasks, fewest)
    worst = min(shares.get(task, 0.0) for task in config.tasks) if shares else None
    update_s = delays.update_s(session, run.run_id, DELAY_UPDATES)
    return stop_rules(config.run, run.version, seconds, update_s, worst)
