"""Declares every metric of every process.

The metrics are declared here and used where the measured thing happens. They cost one comparison
until core/telemetry/exposition.py binds them, which it does if `metrics.port` is set. Labels have
few values (tasks, statuses, tracks) and never contain the id of an episode, group or checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Labels = tuple[str, ...]

CALL_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LONG_S = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


@dataclass(slots=True, eq=False)
class Instrument:
    """A metric. `roles`: processes that export it. `labels`: labels besides `run` and `process`."""

    kind: ClassVar[Literal["counter", "gauge", "histogram"]]

    name: str
    words: str
    roles: Labels
    labels: Labels = ()
    child: Callable[[Mapping[str, str]], Any] | None = None  # prometheus-client's, once bound
    forget: Callable[[], None] | None = None


class Counter(Instrument):
    """A value that only grows."""

    kind = "counter"

    def add(self, amount: float = 1.0, **labels: str) -> None:
        if self.child is not None:
            self.child(labels).inc(amount)


class Gauge(Instrument):
    """A value that can go up and down."""

    kind = "gauge"

    def set(self, value: float, **labels: str) -> None:
        if self.child is not None:
            self.child(labels).set(value)

    def add(self, amount: float) -> None:
        if self.child is not None:
            self.child({}).inc(amount)

    def clear(self) -> None:
        """Stop exporting values that are no longer known."""
        if self.forget is not None:
            self.forget()


@dataclass(slots=True, eq=False)
class Histogram(Instrument):
    """A distribution. `buckets`: upper bounds in the unit at the end of the name."""

    kind = "histogram"

    buckets: Sequence[float] = CALL_S

    def observe(self, value: float, **labels: str) -> None:
        if self.child is not None:
            self.child(labels).observe(value)


@dataclass(slots=True, eq=False)
class Foreign:
    """Metrics of another program that this process exports with its own labels.

    `start`: prefix of their names; other metrics are left out. `read`: returns the exposition as
    text, empty while the program is unavailable; it never raises and returns within a scrape.
    """

    start: str
    roles: Sequence[str]
    read: Callable[[], str] | None = None


PLAYERS = ("dispatcher", "worker", "recorder", "trainer", "policy", "envs")
BESIDE = ("evaluator", "track", "supervisor")
ALL_ROLES = (*PLAYERS, *BESIDE)
DISPATCHER, WORKER, RECORDER, TRAINER, POLICY, ENVS = ((role,) for role in PLAYERS)
EVALUATOR, TRACK, SUPERVISOR = ((role,) for role in BESIDE)

# --- every process
SPANS = Counter("agentrl_spans_total", "Spans of traces by outcome", ALL_ROLES, ("status",))
AWAY = Gauge(
    "agentrl_service_away",
    "1 while the process waits for an unavailable service, else 0",
    ALL_ROLES,
    ("name",),
)

# --- dispatcher: what it does
GROUPS_ADMITTED = Counter("agentrl_groups_admitted_total", "Admitted groups", DISPATCHER, ("task",))
COMMANDS = Counter("agentrl_commands_total", "Commands RunEpisode sent to workers", DISPATCHER)
REISSUES = Counter(
    "agentrl_reissues_total",
    "Episodes queued again after a lost attempt or a lost trajectory",
    DISPATCHER,
    ("reason",),
)
TICK = Histogram("agentrl_tick_seconds", "Duration of one round of the dispatcher", DISPATCHER)

# --- dispatcher: what the rows say, read every metrics.look_s
VERSION = Gauge("agentrl_run_version", "Newest version of the live lineage", DISPATCHER)
OPEN_GROUPS = Gauge("agentrl_open_groups", "Open groups", DISPATCHER, ("state",))
OPEN_EPISODES = Gauge("agentrl_open_episodes", "Open episodes", DISPATCHER, ("state",))
LONGEST_WAIT = Gauge("agentrl_queue_wait_seconds", "Age of the oldest queued episode", DISPATCHER)
QUEUED_MESSAGES = Gauge(
    "agentrl_queue_messages", "Messages in the queues of the run", DISPATCHER, ("queue",)
)
LEASES = Gauge(
    "agentrl_leases", "Workers and policy servers by lease state", DISPATCHER, ("kind", "state")
)
STALENESS = Gauge(
    "agentrl_staleness_updates",
    "Mean staleness of the last batch, in updates",
    DISPATCHER,
    ("kind",),
)
SUCCESS = Gauge(
    "agentrl_success_ratio",
    "Success in the groups of the last ten updates",
    DISPATCHER,
    ("task",),
)
ALARMS = Gauge("agentrl_alarms", "Raised alarms", DISPATCHER, ("name",))

# --- worker
ATTEMPTS = Counter(
    "agentrl_attempts_total",
    "Ended attempts by status, failure reason, given_back, lapsed or error",
    WORKER,
    ("task", "status"),
)
ATTEMPT = Histogram(
    "agentrl_attempt_seconds",
    "Duration of an attempt, from claim to its final row",
    WORKER,
    ("task",),
    buckets=LONG_S,
)
RUNNING = Gauge("agentrl_running_attempts", "Running attempts", WORKER)
SAMPLED = Counter(
    "agentrl_sampled_tokens_total", "Sampled tokens of finished attempts", WORKER, ("task",)
)
POLICY_CALL = Histogram(
    "agentrl_policy_call_seconds", "Duration of a policy call with its redraws", WORKER, ("track",)
)
ENV_CALL = Histogram(
    "agentrl_environment_call_seconds", "Duration of an environment call", WORKER, ("task",)
)
REDRAWS = Counter("agentrl_redraws_total", "Policies replaced during a step", WORKER)

# --- recorder
BODIES = Counter("agentrl_bodies_total", "Received trajectories", RECORDER, ("status",))
BODY_BYTES = Counter(
    "agentrl_body_bytes_total", "Bytes of stored trajectories, compressed as received", RECORDER
)

# --- trainer
UPDATES = Counter("agentrl_updates_total", "Updates", TRAINER, ("status",))
UPDATE = Histogram(
    "agentrl_update_seconds", "Duration of an update with its checkpoint", TRAINER, buckets=LONG_S
)
TRAINED = Counter("agentrl_trained_tokens_total", "Trained loss tokens", TRAINER, ("task",))
CLOSED = Counter("agentrl_closed_groups_total", "Closed groups", TRAINER, ("status",))
HELD = Gauge("agentrl_held_bytes", "Bytes of trajectories in memory", TRAINER)

# --- policy server
REQUESTS = Counter(
    "agentrl_requests_total", "Completion requests by HTTP status", POLICY, ("status",)
)
REQUEST = Histogram("agentrl_request_seconds", "Duration of a completion request", POLICY)
TOKENS = Counter(
    "agentrl_served_tokens_total",
    "Prompt tokens and sampled tokens; upstream: both, as an external model counts them",
    POLICY,
    ("kind",),
)
UPSTREAM = Counter(
    "agentrl_upstream_tries_total", "Requests to an external model, with retries", POLICY
)
SWAPS = Counter(
    "agentrl_swaps_total", "Checkpoints that a track started to serve", POLICY, ("track",)
)
SERVED = Gauge("agentrl_served_version", "Version that a track serves", POLICY, ("track",))
REFUSED = Gauge(
    "agentrl_checkpoint_refused",
    "1 while the newest checkpoint of a track cannot be served",
    POLICY,
)

VLLM = Foreign("vllm:", (*POLICY, *EVALUATOR))

# --- env server
ENV_REQUESTS = Counter(
    "agentrl_environment_requests_total",
    "Environment requests by HTTP status",
    ENVS,
    ("task", "status"),
)
ENV_REQUEST = Histogram(
    "agentrl_environment_request_seconds", "Duration of an environment request", ENVS, ("task",)
)
SESSIONS = Gauge("agentrl_sessions", "Open sessions", ENVS, ("task",))

# --- evaluator, trackers
MEASURED = Counter(
    "agentrl_measured_episodes_total",
    "Evaluated episodes by status, or failed",
    EVALUATOR,
    ("task", "status"),
)
TOLD = Counter("agentrl_told_rows_total", "Rows exported to a tracker", TRACK, ("name",))
UNTOLD = Counter("agentrl_tracker_failures_total", "Failed exports to a tracker", TRACK, ("name",))

# --- supervisor
RESTARTS = Counter("agentrl_restarts_total", "Restarted processes", SUPERVISOR, ("name",))
PROCESSES = Gauge("agentrl_processes", "Live processes", SUPERVISOR)


def instruments(role: str | None = None) -> list[Instrument]:
    """Return all metrics, or those of one role, in the order of this file."""
    found = [each for each in globals().values() if isinstance(each, Instrument)]
    return [each for each in found if role is None or role in each.roles]


def foreign(role: str) -> list[Foreign]:
    """Return the metrics of other programs that a role exports."""
    found = [each for each in globals().values() if isinstance(each, Foreign)]
    return [each for each in found if role in each.roles]
