"""Telemetry of one attempt: ids in every log line, counters, trace."""

import time
from collections.abc import Callable

import structlog

from agentrl.core.telemetry import metrics, tracing
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import SOLVED
from agentrl.db.transitions.episodes import ClaimedEpisode


def observe_attempt(run_id: str, claimed: ClaimedEpisode, attempt: Callable[[], str]) -> None:
    """Run an attempt with telemetry. `attempt`: returns its outcome as one word."""
    mark = tracing.attempt_context(run_id, claimed.episode_id, claimed.fence)
    ids: dict[str, str | int] = {
        "episode_id": claimed.episode_id,
        "group_id": claimed.group_id,
        "fence": claimed.fence,
    }
    traced = {"trace_id": f"{mark.trace:032x}"} if mark else {}
    began, status = time.time(), "error"
    tracing.record_span("queued", mark, began - claimed.waited_s, began)
    metrics.RUNNING.inc(1)
    try:
        with (
            structlog.contextvars.bound_contextvars(**ids, **traced),
            tracing.attempt(mark) as fields,
        ):
            fields |= {**ids, "run_id": run_id, "task": claimed.task, "item_id": claimed.item_id}
            fields["conversation_id"] = claimed.episode_id
            status = attempt()
            fields["status"] = status
    finally:
        metrics.RUNNING.inc(-1)
        metrics.ATTEMPTS.labels(task=claimed.task, status=status).inc()
        metrics.ATTEMPT.labels(task=claimed.task).observe(time.time() - began)


def note_result(trajectory: Trajectory) -> None:
    """Add what a played episode was worth to the attempt's trace."""
    tracing.annotate_attempt(reward=trajectory.reward, success=trajectory.score >= SOLVED)
