"""The trainer's loop: batches in, checkpoints out, until the run ends.

consumes  ready groups (trainer/inbox.py, or a run's history: ops/offline/history_source.py)
produces  one update, one checkpoint and one CheckpointPublished a round (trainer/ledger.py)
waits for groups; for a database, broker, disk or object store that is unavailable, without limit
ends      with the run, or when told to stop, after a snapshot
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from agentrl.checkpoints.checkpoint_store import WeightsAway
from agentrl.core.errors import StoreUnavailable
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics, tracing
from agentrl.core.types import GroupState
from agentrl.db.transitions.updates import RunEnded
from agentrl.trainer.algorithm.metrics import environment_metrics, staleness
from agentrl.trainer.algorithm.presets import Settings
from agentrl.trainer.batch import TakenGroups, TrainableGroup, assemble_batch, with_advantages
from agentrl.trainer.checkpoint_writer import Position
from agentrl.trainer.engines.learner import Learner, Metrics
from agentrl.trainer.ledger import Ledger

log = get_logger()


class GroupSource(Protocol):
    """Where groups come from: the inbox, or the history of a run (ops/offline/)."""

    def next_groups(
        self, version: int, epoch: int, stop: threading.Event, end_if_due: Callable[[], bool]
    ) -> TakenGroups | None:
        """See trainer/inbox.py."""

    def forget(self, closed: Sequence[TrainableGroup]) -> None:
        """Free the bodies of closed groups."""


def train(
    inbox: GroupSource, learner: Learner, ledger: Ledger, settings: Settings, stop: threading.Event
) -> None:
    """Train until the run ends.

    Raises TrainerReplaced if a newer trainer has taken over, and UpdateRefused to start again."""
    at = ledger.resume(learner)
    while ready := _next_update(inbox, ledger, at, stop):
        taken, started_at = ready
        began, groups = time.time(), taken.trained
        batch = assemble_batch(groups, settings)
        figures = learner.update(batch)
        own = environment_metrics(groups)
        values = {**own, **figures.values, **staleness(groups, at.version)}
        figures = replace(figures, values=values)
        try:
            taken = replace(taken, trained=with_advantages(groups, batch))
            at = ledger.commit(learner, at, taken, figures, started_at)
        except RunEnded as error:  # a person was faster; the weights are beyond `at`
            log.info("Last update not committed", reason=str(error))
            return
        except (StoreUnavailable, WeightsAway) as error:
            if not stop.is_set():
                raise
            log.warning("Stopped before the last update was committed", error=str(error))
            return
        inbox.forget([*groups, *taken.left_out])
        count_update(groups, figures, began)
        metrics.CLOSED.labels(status=GroupState.FILTERED).inc(len(taken.left_out))
        trace_update(groups, began, at.version)
        log.info("Update committed", version=at.version, skipped=figures.skipped)
    ledger.snapshot(learner, at)


def _next_update(
    inbox: GroupSource, ledger: Ledger, at: Position, stop: threading.Event
) -> tuple[TakenGroups, float] | None:
    """Return the groups of the next update and its start time, on the database's clock.

    None: the run is over or `stop` is set, also if the database is unavailable.
    """
    try:
        taken = inbox.next_groups(at.version, ledger.epoch, stop, partial(ledger.end_if_due, at))
        return (taken, ledger.started()) if taken else None
    except StoreUnavailable:
        if not stop.is_set():
            raise
        return None


def count_update(groups: Sequence[TrainableGroup], figures: Metrics, began: float) -> None:
    """Count one update in the metrics. `began`: seconds since the epoch."""
    metrics.UPDATES.labels(status="skipped" if figures.skipped else "committed").inc()
    metrics.UPDATE.observe(time.time() - began)
    metrics.CLOSED.labels(status=GroupState.TRAINED).inc(len(groups))
    for group in groups:
        tokens = sum(int(member.mask().sum()) for member in group.members)
        metrics.TRAINED.labels(task=group.task).inc(tokens)


def trace_update(groups: Sequence[TrainableGroup], began: float, version: int) -> None:
    """Record the update to `version` in the trace of each attempt that it trained on."""
    ended = time.time()
    for member in (member for group in groups for member in group.members):
        mark = tracing.attempt_context(member.run_id, member.episode_id, member.fence)
        tracing.record_span("train", mark, began, ended, version=version, group_id=member.group_id)
