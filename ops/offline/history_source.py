"""The groups of a training that plays nothing: copies of what another run's updates looked at.

    batch of the history ─▶ copies (rows, ready) ─▶ no spread: filtered · too old: stale · the rest
    ─▶ the next update, from min_groups on; what is more than max_groups waits for the next

The batches come in the history's order, so the update to a version learns from what the history's
update to that version looked at, as long as nothing differs.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy.orm import Session

from agentrl.core.types import RUN_OVER, GroupState, Reason, RunState
from agentrl.db.queries.history_batches import HistoryBatch
from agentrl.db.store import Store
from agentrl.db.transitions import updates
from agentrl.db.transitions.trajectories import group_copies
from agentrl.ops.offline.copying import CopiedGroup, CopyPlace, make_copy
from agentrl.trainer.batch import TakenGroups, TrainableGroup
from agentrl.trainer.group_selection import (
    InboxBounds,
    classify_group,
    close_useless,
    select_varied,
)

PAUSE_S = 1.0  # between two looks at a paused run


@dataclass(frozen=True, slots=True)
class History:
    """What is trained on. `forks`: versions at which the line of a policy that sampled parted from
    the one that is trained, by checkpoint (trainer/group_selection.py).
    """

    batches: Sequence[HistoryBatch]
    forks: Mapping[str, int]


class HistorySource:
    """Yields the batches of one offline run. For one thread.

    `is_used_up`: no batch is left. Groups that are too few for an update stay ready. A group whose
    bodies are not stored has no copy.
    """

    def __init__(self, store: Store, run_id: str, bounds: InboxBounds, history: History) -> None:
        self._store = store
        self._run_id = run_id
        self._bounds = bounds
        self._forks = history.forks
        self._batches = deque(history.batches)
        self._copies: Mapping[str, Sequence[GroupState]] | None = None
        self._waiting: list[TrainableGroup] = []
        self.is_used_up = False

    def next_groups(
        self, version: int, epoch: int, stop: threading.Event, end_if_due: Callable[[], bool]
    ) -> TakenGroups | None:
        """Return the groups of the update from `version`; see trainer/inbox.py.

        None also if the history is used up.
        """
        while not stop.is_set() and not end_if_due():
            state = self._read_state(epoch)
            if state in RUN_OVER:
                break
            if state == RunState.PAUSED:
                stop.wait(PAUSE_S)
                continue
            self._close_useless(version, epoch)
            if len(self._waiting) >= self._bounds.min_groups:
                most = self._bounds.max_groups
                taken, self._waiting = self._waiting[:most], self._waiting[most:]
                return select_varied(taken, self._bounds)
            if not self._batches:
                self.is_used_up = True
                break
            self._read_batch(self._batches.popleft(), epoch)
        return None

    def is_over(self, epoch: int) -> bool:
        """Return whether the run is over. Raises TrainerReplaced."""
        return self._read_state(epoch) in RUN_OVER

    def forget(self, closed: Sequence[TrainableGroup]) -> None:
        """Do nothing: bodies are held by the update alone."""

    def _read_state(self, epoch: int) -> RunState:
        return self._store.ask(lambda session: updates.run_state(session, self._run_id, epoch))

    def _read_batch(self, batch: HistoryBatch, epoch: int) -> None:
        """Copy the groups of a batch that the run has not closed yet."""
        if self._copies is None:  # after the roll-back of a trainer that was killed
            self._copies = self._store.ask(partial(group_copies.copies, run_id=self._run_id))
        copies: list[CopiedGroup] = []
        for group_id, origin_id in batch.group_ids:
            states = self._copies.get(origin_id, ())
            undone = sum(state == GroupState.ROLLED_BACK for state in states)
            if any(state not in (GroupState.ROLLED_BACK, GroupState.READY) for state in states):
                continue
            place = CopyPlace(self._run_id, batch.version, undone)
            copied = make_copy(self._store, group_id, place)
            copies += [copied] if copied else []

        def insert(session: Session) -> None:
            updates.lock_run(session, self._run_id, epoch)
            for each in copies:
                group_copies.add_copy(session, each.rows)

        self._store.transact(insert)
        self._waiting += [each.group for each in copies]

    def _close_useless(self, version: int, epoch: int) -> None:
        """Close the groups that the update from `version` may not train on."""
        closing: dict[Reason, list[str]] = {}
        kept: list[TrainableGroup] = []
        for group in self._waiting:
            reason = classify_group(group, version, self._bounds, self._forks)
            if reason is None:
                kept.append(group)
            else:
                closing.setdefault(reason, []).append(group.group_id)
        self._waiting = kept
        close_useless(self._store, self._run_id, epoch, closing)
