"""`agentrl tracker`: exports the rows of a run to trackers, in a process that nothing waits for.

store ─▶ rows not exported yet ─▶ what the tracker does not hold ─▶ its log  (a thread for each)
"""

import contextlib
import threading
from collections.abc import Collection, Sequence
from contextlib import closing
from functools import partial
from typing import IO

import msgspec

from agentrl.core import logging
from agentrl.core.config.config import Config
from agentrl.core.errors import AgentRLError, StoreUnavailable, in_words
from agentrl.core.retry import Retry
from agentrl.core.telemetry import metrics
from agentrl.core.types import RUN_OVER
from agentrl.db.admin.readonly import open_history
from agentrl.db.queries import tracker_cursor
from agentrl.db.queries.tracker_cursor import TrackerCursor, TrackerRow
from agentrl.db.store import Store
from agentrl.db.transitions import runs
from agentrl.ops.trackers.base import (
    Figure,
    Tracker,
    figure,
    folder_of,
    lock_tracker,
    redact_secrets,
)

# After a tracker failed, before the next look. No retry of one call (core/retry.py):
# what a tracker raises is other people's, and the next look tells what came meanwhile as well.
BACK_OFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)

log = logging.get_logger()


class TrackerExporter:
    """Exports to one tracker of a run; used by one thread."""

    def __init__(
        self,
        config: Config,
        tracker: Tracker,
        name: str,
        back_off_s: Sequence[float] = BACK_OFF_S,
    ) -> None:
        self._config = config
        self._back_off_s = back_off_s
        self._tracker = tracker
        self._name = name
        self._alone: IO[bytes] | None = None
        self._started = False
        self._logged: Collection[Figure] = ()
        self._cursor = TrackerCursor()

    def follow(self, stop: threading.Event) -> None:
        """Export existing and new rows until the run is over or `stop` is set."""
        failures, ended = 0, False
        retry = Retry("store", StoreUnavailable, stop=stop)
        opened = partial(open_history, self._config.store_url())
        while not ended:
            last = stop.is_set()
            try:
                with closing(retry.call(opened)) as store:
                    ended = self.look(store) or last
                if ended:
                    self._finish()
                failures = 0
            except StoreUnavailable:  # the next look waits for it
                ended = last
            except Exception as error:  # other people's code: whatever it throws costs itself
                self._failed(error)
                ended = last
                failures += 1
            if not ended:
                pause_s = self._config.trackers.look_s
                if failures:
                    pause_s = self._back_off_s[min(failures, len(self._back_off_s)) - 1]
                stop.wait(pause_s)
        if self._alone is not None:
            self._alone.close()

    def look(self, store: Store) -> bool:
        """Export new rows; return whether the run was over before.

        Raises StoreError and the errors of trackers.
        """
        name = self._config.run.name
        with store.read() as session:
            run = runs.require_run(session, name)
            over, run_id = run.state in RUN_OVER, run.run_id
        if self._alone is None:
            self._alone = lock_tracker(self._name, run_id, folder_of(self._name, self._config))
        if not self._started:
            values = redact_secrets(msgspec.to_builtins(self._config))
            self._logged = self._tracker.start(run_id, values)
            self._cursor, self._started = TrackerCursor(), True
        while lines := self._lines(store, run_id):
            for line in lines:
                self._tell(line)
        return over

    def _lines(self, store: Store, run_id: str) -> list[TrackerRow]:
        with store.read() as session:
            return tracker_cursor.tracker_rows(session, run_id, self._cursor)

    def _tell(self, line: TrackerRow) -> None:
        new = {
            name: value
            for name, value in line.metrics.items()
            if figure(line.version, name, value) not in self._logged
        }
        if new:
            self._tracker.log(line.version, new)
            metrics.EXPORTED.labels(name=self._name).inc()
        self._cursor = line.cursor

    def _failed(self, error: Exception) -> None:
        known = isinstance(error, AgentRLError)
        log.warning(
            "Metrics not exported", tracker=self._name, error=in_words(error), exc_info=not known
        )
        metrics.EXPORT_FAILURES.labels(name=self._name).inc()
        with contextlib.suppress(Exception):  # it has been told of; the next start tells anew
            self._finish()

    def _finish(self) -> None:
        """Finish the tracker; the next look starts it again and asks what it holds."""
        self._started = False
        self._tracker.finish()
