"""Declares every metric of every process, with prometheus-client.

The metrics are declared here and used where the measured thing happens. Each belongs to the
registry of the role that exports it; core/telemetry/exposition.py serves it if `metrics.port` is
set, with the labels `run` and `process`. Other labels have few values (tasks, statuses, tracks) and
never contain the id of an episode, group or checkpoint.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client import Gauge as Gauge  # noqa: PLC0414 - exported

CALL_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LONG_S = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


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
BESIDE = ("evaluator", "tracker", "supervisor")
COMMON = CollectorRegistry()  # of every process
REGISTRIES = {role: CollectorRegistry() for role in (*PLAYERS, *BESIDE)}
DISPATCHER, WORKER, RECORDER, TRAINER, POLICY, ENVS = (REGISTRIES[role] for role in PLAYERS)
EVALUATOR, TRACKER, SUPERVISOR = (REGISTRIES[role] for role in BESIDE)
disable_created_metrics()  # type: ignore[no-untyped-call]


# --- every process
SPANS = Counter("agentrl_spans_total", "Spans of traces by outcome", ("status",), registry=COMMON)
AWAY = Gauge(
    "agentrl_service_away",
    "1 while the process waits for an unavailable service, else 0",
    ("name",),
    registry=COMMON,
)

# --- dispatcher: what it does
GROUPS_ADMITTED = Counter(
    "agentrl_groups_admitted_total", "Admitted groups", ("task",), registry=DISPATCHER
)
COMMANDS = Counter(
    "agentrl_commands_total", "Commands RunEpisode sent to workers", registry=DISPATCHER
)
REISSUES = Counter(
    "agentrl_reissues_total",
    "Episodes queued again after a lost attempt or a lost trajectory",
    ("reason",),
    registry=DISPATCHER,
)
TICK = Histogram(
    "agentrl_tick_seconds",
    "Duration of one round of the dispatcher",
    registry=DISPATCHER,
    buckets=CALL_S,
)

# --- dispatcher: what the rows say, read every metrics.look_s
VERSION = Gauge("agentrl_run_version", "Newest version of the live lineage", registry=DISPATCHER)
OPEN_GROUPS = Gauge("agentrl_open_groups", "Open groups", ("state",), registry=DISPATCHER)
OPEN_EPISODES = Gauge("agentrl_open_episodes", "Open episodes", ("state",), registry=DISPATCHER)
LONGEST_WAIT = Gauge(
    "agentrl_queue_wait_seconds", "Age of the oldest queued episode", registry=DISPATCHER
)
QUEUED_MESSAGES = Gauge(
    "agentrl_queue_messages", "Messages in the queues of the run", ("queue",), registry=DISPATCHER
)
LEASES = Gauge(
    "agentrl_leases",
    "Workers and policy servers by lease state",
    ("kind", "state"),
    registry=DISPATCHER,
)
STALENESS = Gauge(
    "agentrl_staleness_updates",
    "Mean staleness of the last batch, in updates",
    ("kind",),
    registry=DISPATCHER,
)
SUCCESS = Gauge(
    "agentrl_success_ratio",
    "Success in groups closed since the last ten updates began",
    ("task",),
    registry=DISPATCHER,
)
ALARMS = Gauge("agentrl_alarms", "Raised alarms", ("name",), registry=DISPATCHER)

# --- worker
ATTEMPTS = Counter(
    "agentrl_attempts_total",
    "Ended attempts by status, failure reason, given_back, lapsed or error",
    ("task", "status"),
    registry=WORKER,
)
ATTEMPT = Histogram(
    "agentrl_attempt_seconds",
    "Duration of an attempt, from claim to its final row",
    ("task",),
    registry=WORKER,
    buckets=LONG_S,
)
RUNNING = Gauge("agentrl_running_attempts", "Running attempts", registry=WORKER)
SAMPLED = Counter(
    "agentrl_sampled_tokens_total",
    "Sampled tokens of finished attempts",
    ("task",),
    registry=WORKER,
)
POLICY_CALL = Histogram(
    "agentrl_policy_call_seconds",
    "Duration of a policy call with its redraws",
    ("track",),
    registry=WORKER,
    buckets=CALL_S,
)
ENV_CALL = Histogram(
    "agentrl_environment_call_seconds",
    "Duration of an environment call",
    ("task",),
    registry=WORKER,
    buckets=CALL_S,
)
REDRAWS = Counter("agentrl_redraws_total", "Policies replaced during a step", registry=WORKER)
JOURNAL = Histogram(
    "agentrl_journal_seconds",
    "Time that a turn waits until its step is stored",
    registry=WORKER,
    buckets=CALL_S,
)
TAKEOVERS = Counter(
    "agentrl_takeovers_total",
    "Attempts that found recorded steps: attached, replayed, unjudged, or why they started anew",
    ("task", "status"),
    registry=WORKER,
)
JUDGEMENTS = Counter(
    "agentrl_judgements_total",
    "Answers of judges: scored or unreadable",
    ("task", "status"),
    registry=WORKER,
)

# --- recorder
BODIES = Counter("agentrl_bodies_total", "Received trajectories", ("status",), registry=RECORDER)
BODY_BYTES = Counter(
    "agentrl_body_bytes_total",
    "Bytes of stored trajectories, compressed as received",
    registry=RECORDER,
)

# --- trainer
UPDATES = Counter("agentrl_updates_total", "Updates", ("status",), registry=TRAINER)
UPDATE = Histogram(
    "agentrl_update_seconds",
    "Time from the start of an update to the commit of its checkpoint",
    registry=TRAINER,
    buckets=LONG_S,
)
TRAINED = Counter(
    "agentrl_trained_tokens_total", "Trained loss tokens", ("task",), registry=TRAINER
)
CLOSED = Counter("agentrl_closed_groups_total", "Closed groups", ("status",), registry=TRAINER)
HELD = Gauge("agentrl_held_bytes", "Bytes of trajectories in memory", registry=TRAINER)

# --- policy server
REQUESTS = Counter(
    "agentrl_requests_total", "Completion requests by HTTP status", ("status",), registry=POLICY
)
REQUEST = Histogram(
    "agentrl_request_seconds", "Duration of a completion request", registry=POLICY, buckets=CALL_S
)
TOKENS = Counter(
    "agentrl_served_tokens_total",
    "Prompt tokens and sampled tokens; upstream: both, as an external model counts them",
    ("kind",),
    registry=POLICY,
)
UPSTREAM = Counter(
    "agentrl_upstream_tries_total", "Requests to an external model, with retries", registry=POLICY
)
SWAPS = Counter(
    "agentrl_swaps_total", "Checkpoints that a track started to serve", ("track",), registry=POLICY
)
SERVED = Gauge("agentrl_served_version", "Version that a track serves", ("track",), registry=POLICY)
REFUSED = Gauge(
    "agentrl_checkpoint_refused",
    "1 while the newest checkpoint of a track cannot be served",
    registry=POLICY,
)

VLLM = Foreign("vllm:", ("policy", "evaluator"))
FOREIGN = (VLLM,)


# --- env server
ENV_REQUESTS = Counter(
    "agentrl_environment_requests_total",
    "Environment requests by HTTP status",
    ("task", "status"),
    registry=ENVS,
)
ENV_REQUEST = Histogram(
    "agentrl_environment_request_seconds",
    "Duration of an environment request",
    ("task",),
    registry=ENVS,
    buckets=CALL_S,
)
SESSIONS = Gauge("agentrl_sessions", "Open sessions", ("task",), registry=ENVS)

# --- evaluator, trackers
MEASURED = Counter(
    "agentrl_measured_episodes_total",
    "Evaluated episodes by status, or failed",
    ("task", "status"),
    registry=EVALUATOR,
)
EXPORTED = Counter(
    "agentrl_exported_rows_total", "Rows exported to a tracker", ("name",), registry=TRACKER
)
EXPORT_FAILURES = Counter(
    "agentrl_tracker_failures_total", "Failed exports to a tracker", ("name",), registry=TRACKER
)

# --- supervisor
RESTARTS = Counter("agentrl_restarts_total", "Restarted processes", ("name",), registry=SUPERVISOR)
PROCESSES = Gauge("agentrl_processes", "Live processes", registry=SUPERVISOR)


def forget(gauge: Gauge) -> None:
    """Stop exporting values that are no longer known; a gauge without labels exports NaN."""
    gauge.clear()
    if not gauge._labelnames:  # noqa: SLF001 - prometheus-client has no public name for it
        gauge.set(math.nan)


for _gauge in (VERSION, LONGEST_WAIT):  # nothing is known of them before they are first set
    forget(_gauge)
