"""The trainer's loop: batches in, checkpoints out, until the run ends.

consumes  ready groups (trainer/inbox.py)
produces  one update, one checkpoint and one CheckpointPublished a round (trainer/ledger.py)
waits for groups
ends      with the run, or when told to stop, after a snapshot
"""

import threading
import time
from collections.abc import Sequence
from functools import partial

from core import metrics
from core.logging import get_logger
from core.types import GroupState
from db.updates import RunEnded
from trainer.batch import TrainableGroup, assemble, taught
from trainer.inbox import Inbox
from trainer.learner import Learner, Metrics
from trainer.ledger import Ledger
from trainer.presets import Settings

log = get_logger()


def train(
    inbox: Inbox, learner: Learner, ledger: Ledger, settings: Settings, stop: threading.Event
) -> None:
    """Raises TrainerReplaced when a newer trainer has taken over, UpdateRefused to begin again."""
    at = ledger.resume(learner)
    while groups := inbox.next_groups(at.version, stop, partial(ledger.end_if_due, at)):
        started_at, began = ledger.started(), time.perf_counter()
        batch = assemble(groups, settings)
        figures = learner.update(batch)
        try:
            at = ledger.commit(learner, at, taught(groups, batch), figures, started_at)
        except RunEnded as error:  # a person was faster; the weights are beyond `at`
            log.info("last update not committed", reason=str(error))
            return
        inbox.forget(groups)
        count(groups, figures, time.perf_counter() - began)
        log.info("update committed", version=at.version, skipped=figures.skipped)
    ledger.snapshot(learner, at)


def count(groups: Sequence[TrainableGroup], figures: Metrics, seconds: float) -> None:
    """One update, for whoever watches."""
    metrics.UPDATES.add(status="skipped" if figures.skipped else "committed")
    metrics.UPDATE.observe(seconds)
    metrics.CLOSED.add(len(groups), status=GroupState.TRAINED)
    for group in groups:
        tokens = sum(int(member.mask().sum()) for member in group.members)
        metrics.TRAINED.add(tokens, task=group.task)
