"""What processes count and measure of themselves; every name that Prometheus can be asked for.

Declared here and used where the thing happens. Until core/telemetry/exposition.py binds them, which
it does where `metrics.port` is set, adding to one is a comparison. Labels have few values: tasks,
statuses, tracks; never an id of an episode, a group or a checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Labels = tuple[str, ...]

CALL_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LONG_S = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


@dataclass(slots=True, eq=False)
class Instrument:
    """`roles`: the processes that export it; `labels`: beside `run` and `process`."""

    kind: ClassVar[Literal["counter", "gauge", "histogram"]]

    name: str
    words: str
    roles: Labels
    labels: Labels = ()
    child: Callable[[Mapping[str, str]], Any] | None = None  # prometheus-client's, once bound
    forget: Callable[[], None] | None = None


class Counter(Instrument):
    """Only grows."""

    kind = "counter"

    def add(self, amount: float = 1.0, **labels: str) -> None:
        if self.child is not None:
            self.child(labels).inc(amount)


class Gauge(Instrument):
    """Goes up and down."""

    kind = "gauge"

    def set(self, value: float, **labels: str) -> None:
        if self.child is not None:
            self.child(labels).set(value)

    def add(self, amount: float) -> None:
        if self.child is not None:
            self.child({}).inc(amount)

    def clear(self) -> None:
        """Export nothing rather than what is not known any more."""
        if self.forget is not None:
            self.forget()


@dataclass(slots=True, eq=False)
class Histogram(Instrument):
    """A distribution. `buckets`: upper bounds, in the unit that the name ends with."""

    kind = "histogram"

    buckets: Sequence[float] = CALL_S

    def observe(self, value: float, **labels: str) -> None:
        if self.child is not None:
            self.child(labels).observe(value)


@dataclass(slots=True, eq=False)
class Foreign:
    """Metrics that another program exports and this process passes on, with its own labels.

    `start`: of their names; what else it exports is left out. `read`: its exposition as text,
    empty while it is away; it never raises and returns within a scrape.
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
SPANS = Counter(
    "agentrl_spans_total", "Spans of traces, by what became of them", ALL_ROLES, ("status",)
)
AWAY = Gauge(
    "agentrl_service_away",
    "1 while the process waits for a service that is away, 0 once it answered again",
    ALL_ROLES,
    ("name",),
)

# --- dispatcher: what it does
GROUPS_ADMITTED = Counter("agentrl_groups_admitted_total", "Groups opened", DISPATCHER, ("task",))
COMMANDS = Counter("agentrl_commands_total", "RunEpisode sent", DISPATCHER)
REISSUES = Counter(
    "agentrl_reissues_total",
    "Attempts and bodies given up and queued again",
    DISPATCHER,
    ("reason",),
)
TICK = Histogram("agentrl_tick_seconds", "One round of the dispatcher", DISPATCHER)

# --- dispatcher: what the rows say, read every metrics.look_s
VERSION = Gauge("agentrl_run_version", "Newest version of the live lineage", DISPATCHER)
OPEN_GROUPS = Gauge("agentrl_open_groups", "Groups not closed yet", DISPATCHER, ("state",))
OPEN_EPISODES = Gauge("agentrl_open_episodes", "Episodes not ended yet", DISPATCHER, ("state",))
LONGEST_WAIT = Gauge(
    "agentrl_queue_wait_seconds", "Since the oldest queued episode was queued", DISPATCHER
)
QUEUED_MESSAGES = Gauge(
    "agentrl_queue_messages", "Messages waiting in the run's queues", DISPATCHER, ("queue",)
)
LEASES = Gauge(
    "agentrl_leases", "Workers and policy servers by their lease", DISPATCHER, ("kind", "state")
)
STALENESS = Gauge(
    "agentrl_staleness_updates",
    "Mean updates between sampling and learning in the last batch",
    DISPATCHER,
    ("kind",),
)
SUCCESS = Gauge(
    "agentrl_success_ratio",
    "Success over the groups of the last ten updates",
    DISPATCHER,
    ("task",),
)
ALARMS = Gauge("agentrl_alarms", "Alarms that are raised", DISPATCHER, ("name",))

# --- worker
ATTEMPTS = Counter(
    "agentrl_attempts_total",
    "Attempts ended: a status, the reason of a failed one, given_back, lapsed, error",
    WORKER,
    ("task", "status"),
)
ATTEMPT = Histogram(
    "agentrl_attempt_seconds",
    "One attempt, from claim to its row",
    WORKER,
    ("task",),
    buckets=LONG_S,
)
RUNNING = Gauge("agentrl_running_attempts", "Attempts under way", WORKER)
SAMPLED = Counter(
    "agentrl_sampled_tokens_total", "Sampled tokens of finished attempts", WORKER, ("task",)
)
POLICY_CALL = Histogram(
    "agentrl_policy_call_seconds", "One policy call, its redraws included", WORKER, ("track",)
)
ENV_CALL = Histogram("agentrl_environment_call_seconds", "One answer", WORKER, ("task",))
REDRAWS = Counter("agentrl_redraws_total", "Policies replaced within a step", WORKER)

# --- recorder
BODIES = Counter("agentrl_bodies_total", "Bodies received", RECORDER, ("status",))
BODY_BYTES = Counter("agentrl_body_bytes_total", "Of the bodies stored, as they came", RECORDER)

# --- trainer
UPDATES = Counter("agentrl_updates_total", "Updates", TRAINER, ("status",))
UPDATE = Histogram(
    "agentrl_update_seconds", "One update, its checkpoint included", TRAINER, buckets=LONG_S
)
TRAINED = Counter("agentrl_trained_tokens_total", "Loss tokens learned from", TRAINER, ("task",))
CLOSED = Counter("agentrl_closed_groups_total", "Groups closed", TRAINER, ("status",))
HELD = Gauge("agentrl_held_bytes", "Bodies held in memory", TRAINER)

# --- policy server
REQUESTS = Counter(
    "agentrl_requests_total", "Requests for completions, by HTTP status", POLICY, ("status",)
)
REQUEST = Histogram("agentrl_request_seconds", "One request for a completion", POLICY)
TOKENS = Counter(
    "agentrl_served_tokens_total",
    "Tokens read and sampled; upstream: both, as an external model counts them",
    POLICY,
    ("kind",),
)
UPSTREAM = Counter("agentrl_upstream_tries_total", "Tries at an external model", POLICY)
SWAPS = Counter("agentrl_swaps_total", "Checkpoints that began to be served", POLICY, ("track",))
SERVED = Gauge("agentrl_served_version", "Version that a track is served from", POLICY, ("track",))
REFUSED = Gauge(
    "agentrl_checkpoint_refused",
    "1 while the checkpoint that was to be served last cannot be",
    POLICY,
)

VLLM = Foreign("vllm:", (*POLICY, *EVALUATOR))

# --- env server
ENV_REQUESTS = Counter(
    "agentrl_environment_requests_total",
    "Requests to environments, by HTTP status",
    ENVS,
    ("task", "status"),
)
ENV_REQUEST = Histogram(
    "agentrl_environment_request_seconds", "One request to an environment", ENVS, ("task",)
)
SESSIONS = Gauge("agentrl_sessions", "Episodes that have not ended", ENVS, ("task",))

# --- evaluator, trackers
MEASURED = Counter(
    "agentrl_measured_episodes_total",
    "Episodes measured: a status, or failed",
    EVALUATOR,
    ("task", "status"),
)
TOLD = Counter("agentrl_told_rows_total", "Rows told to a tracker", TRACK, ("name",))
UNTOLD = Counter(
    "agentrl_tracker_failures_total", "Looks that a tracker or the store failed", TRACK, ("name",)
)

# --- supervisor
RESTARTS = Counter("agentrl_restarts_total", "Processes started again", SUPERVISOR, ("name",))
PROCESSES = Gauge("agentrl_processes", "Live processes", SUPERVISOR)


def instruments(role: str | None = None) -> list[Instrument]:
    """All, or those of one role, in the order of this file."""
    found = [each for each in globals().values() if isinstance(each, Instrument)]
    return [each for each in found if role is None or role in each.roles]


def foreign(role: str) -> list[Foreign]:
    """What a role passes on."""
    found = [each for each in globals().values() if isinstance(each, Foreign)]
    return [each for each in found if role in each.roles]
