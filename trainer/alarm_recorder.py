"""Finds the alarms of an update, and looks at groups between two updates.

    metrics + groups since the last update ─▶ trainer/algorithm/alarms.py ─▶ rows, in the
    update's transaction (trainer/update_publisher.py) or in a look's ─▶ one line of the log each

A run in which no group has spread has no updates; the check between updates notices it.
"""

import dataclasses
from collections.abc import Sequence

from sqlalchemy.orm import Session

from agentrl.core.config.sections.training import Alarms
from agentrl.core.logging import get_logger
from agentrl.db.models.runs import Run
from agentrl.db.queries import episode_outcomes
from agentrl.db.store import Store
from agentrl.db.transitions import alarms, updates
from agentrl.db.transitions.alarms import AlarmReading
from agentrl.db.transitions.updates import NewUpdate
from agentrl.trainer.algorithm.alarms import (
    COMPARED,
    EarlierMetrics,
    alarm_changes,
    ending_readings,
    group_metrics,
    share_readings,
    update_readings,
)

Edges = list[tuple[AlarmReading, alarms.RaisedAlarm | None]]  # what begins, what ends

log = get_logger()


class AlarmRecorder:
    """Records the alarms of one run. One call at a time: Ledger sees to it."""

    def __init__(self, config: Alarms, max_grad_norm: float, run_id: str) -> None:
        """`max_grad_norm`: of the trainer, which an alarm's bound is a multiple of."""
        self._config = config
        self._max_grad_norm = max_grad_norm
        self._run_id = run_id

    def commit(self, session: Session, new: NewUpdate) -> list[AlarmReading]:
        """Commit an update with its alarms; return those to log.

        Safe to repeat: what is committed already is read back.
        """
        new, changes = self._examine(session, new)
        if updates.commit_update(session, new):
            version = new.checkpoint.version
            alarms.add_alarms(session, new.run_id, new.update_id, version, changes)
            session.flush()
        return alarms.alarms_of_update(session, new.update_id)

    def _examine(self, session: Session, new: NewUpdate) -> tuple[NewUpdate, Edges]:
        """Return the update with the metrics of groups, and the alarms that it begins or ends."""
        taken = {member.group_id for member in new.members}.union(new.left_out)
        counted = group_metrics(
            alarms.groups_since_update(session, self._run_id, taken, new.started_at), new.metrics
        )
        earlier = EarlierMetrics(
            first=episode_outcomes.first_metrics(session, self._run_id, COMPARED),
            last=episode_outcomes.recent_metrics(session, self._run_id, COMPARED),
        )
        standing = alarms.raised_alarms(session, self._run_id)
        new = dataclasses.replace(new, metrics=new.metrics | counted)
        readings = update_readings(
            new.metrics, earlier, self._config, self._max_grad_norm, skipped=new.reason
        )
        found = {(each.task, each.name) for each in readings}
        silent = [each for each in standing if (each.task, each.name) not in found]
        readings += ending_readings(new.metrics, earlier, self._config, silent)
        return new, alarm_changes(readings, standing)

    def record_group_alarms(self, store: Store, version: int, epoch: int) -> None:
        """Raise alarms about groups between two updates; the next update decides whether they end.

        Groups that have just become ready may still turn out to have no spread.
        """
        if store.ask(self._changed_alarms):
            log_alarms(
                store.transact(lambda session: self._record_alarms(session, version, epoch)),
                version,
            )

    def _changed_alarms(self, session: Session) -> Edges:
        metrics = group_metrics(alarms.groups_since_update(session, self._run_id))
        readings = share_readings(metrics, self._config)
        raised = [reading for reading in readings if reading.raised]
        return alarm_changes(raised, alarms.raised_alarms(session, self._run_id)) if raised else []

    def _record_alarms(self, session: Session, version: int, epoch: int) -> list[AlarmReading]:
        run = session.get_one(Run, self._run_id, with_for_update=True, populate_existing=True)
        if run.trainer_epoch != epoch:
            return []
        changes = self._changed_alarms(session)
        alarms.add_alarms(session, self._run_id, None, version, changes)
        return [reading for reading, _ in changes]


def log_alarms(readings: Sequence[AlarmReading], version: int, reason: str = "") -> None:
    """Log a warning for a raised alarm, a notice for its end. `reason`: of a skipped update."""
    for each in readings:
        say, what = (log.warning, "Alarm raised") if each.raised else (log.info, "Alarm ended")
        say(
            what,
            alarm=each.name,
            task=each.task,
            value=each.value,
            threshold=each.threshold,
            version=version,
            reason=reason if each.name == "skipped" else "",
        )
