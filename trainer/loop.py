"""The trainer's loop: batches in, checkpoints out, until the run ends.

consumes  ready groups (trainer/inbox.py)
produces  one update, one checkpoint and one CheckpointPublished a round (trainer/ledger.py)
waits for groups
ends      with the run, or when told to stop, after a snapshot
"""

import threading
from functools import partial

from core.logging import get_logger
from db.updates import RunEnded
from trainer.batch import assemble, taught
from trainer.inbox import Inbox
from trainer.learner import Learner
from trainer.ledger import Ledger
from trainer.presets import Settings

log = get_logger()


def train(
    inbox: Inbox, learner: Learner, ledger: Ledger, settings: Settings, stop: threading.Event
) -> None:
    """Raises TrainerReplaced when a newer trainer has taken over, UpdateRefused to begin again."""
    at = ledger.resume(learner)
    while groups := inbox.next_groups(at.version, stop, partial(ledger.end_if_due, at)):
        started_at = ledger.started()
        batch = assemble(groups, settings)
        metrics = learner.update(batch)
        try:
            at = ledger.commit(learner, at, taught(groups, batch), metrics, started_at)
        except RunEnded as error:  # a person was faster; the weights are beyond `at`
            log.info("last update not committed", reason=str(error))
            return
        inbox.forget(groups)
        log.info("update committed", version=at.version, skipped=metrics.skipped)
    ledger.snapshot(learner, at)
