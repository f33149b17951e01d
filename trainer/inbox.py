"""The trainer's inbox: selects ready groups that are complete, verified, fresh and have spread.

    trainer.trajectories.<run> ─▶ bodies held in memory (acknowledged on receipt)
    database: which groups are ready ─▶ bodies by fence and hash, missing ones from `trajectories`
             ─▶ zero spread: filtered · too old: stale · the rest: a batch of min to max groups

The broker only delivers bodies early; the database decides which of them are trained. While the
broker is unavailable, bodies are read from the database.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby

from sqlalchemy.orm import Session

from agentrl.broker.api import Consumer, Delivery
from agentrl.broker.messages import EpisodeFinished
from agentrl.core.errors import BrokerError, MessageError
from agentrl.core.logging import get_logger
from agentrl.core.retry import Retry
from agentrl.core.telemetry import metrics
from agentrl.core.trajectory import Trajectory
from agentrl.core.trajectory_body import body_of
from agentrl.core.types import RUN_OVER, Reason, RunState
from agentrl.db.store import Store
from agentrl.db.transitions import groups, updates
from agentrl.db.transitions.trajectories import bodies
from agentrl.db.transitions.updates import ReadyMember
from agentrl.trainer.batch import TakenGroups, TrainableGroup
from agentrl.trainer.group_selection import (
    InboxBounds,
    classify_group,
    close_useless,
    select_varied,
)

RECEIVE_S = 0.1  # between two looks at the database while the broker brings nothing
DUE_EVERY_S = 1.0  # between two looks at the stop rules

Key = tuple[str, int]

log = get_logger()


class Inbox:
    """Collects the batches of one run. For one thread."""

    def __init__(self, store: Store, consumer: Consumer, run_id: str, bounds: InboxBounds) -> None:
        self._store = store
        self._consumer = consumer
        self._run_id = run_id
        self._bounds = bounds
        self._bodies: dict[Key, Trajectory] = {}
        self._held_bytes = 0
        self._pinned: set[Key] = set()  # of the batch that is being gathered: they make no room
        self._taken: set[str] = set()  # the last groups returned; their update may be in flight
        self._unacknowledged: list[Delivery] = []
        self._retry = Retry("broker", BrokerError)
        self._forks: Mapping[str, int] | None = None  # read once: a roll-back begins a trainer

    def next_groups(
        self, version: int, epoch: int, stop: threading.Event, end_if_due: Callable[[], bool]
    ) -> TakenGroups | None:
        """Return the groups of the update from `version`; None if `stop` is set or the run is over.

        The last groups that were returned are not returned again: while their update is being
        published, they are still ready in the database.

        `end_if_due`: ends the run by its stop rules, also if no groups come. Raises TrainerReplaced
        if `epoch` is outdated: a trainer that slept must not discard groups of its successor.
        """
        look_at = time.monotonic()
        while not stop.is_set():
            if time.monotonic() >= look_at:
                if end_if_due():
                    break
                look_at = time.monotonic() + DUE_EVERY_S
            self._receive()
            state, members = self._store.ask(partial(self._read_ready, epoch))
            if state in RUN_OVER:
                break
            if state == RunState.PAUSED:
                continue
            chosen = self._choose_groups(members, version, epoch)
            if len(chosen) >= self._bounds.min_groups and self._take_groups(chosen, epoch):
                self._taken = {group.group_id for group in chosen}
                return select_varied(chosen, self._bounds)
        return None

    def is_over(self, epoch: int) -> bool:
        """Return whether the run is over, for waits between two calls of `next_groups`.

        It also acknowledges the bodies that have arrived. Raises TrainerReplaced.
        """
        self._receive()
        state = self._store.ask(lambda session: updates.run_state(session, self._run_id, epoch))
        return state in RUN_OVER

    def _take_groups(self, chosen: Sequence[TrainableGroup], epoch: int) -> bool:
        """Mark groups so that their episodes are not re-issued; False: one was re-issued before."""
        names = [group.group_id for group in chosen]
        return self._store.transact(lambda session: groups.take_groups(session, names, epoch))

    def _read_ready(self, epoch: int, session: Session) -> tuple[RunState, Sequence[ReadyMember]]:
        limit = 4 * self._bounds.max_groups
        state = updates.run_state(session, self._run_id, epoch)
        members = updates.ready_members(session, self._run_id, limit=limit)
        return state, [member for member in members if member.group_id not in self._taken]

    def forget(self, closed: Sequence[TrainableGroup]) -> None:
        """Free the bodies of groups that are not needed again."""
        for group in closed:
            for member in group.members:
                self._drop_body((member.episode_id, member.fence))

    def _receive(self) -> None:
        """Hold and acknowledge the received bodies. An unavailable broker delivers none."""
        with suppress(BrokerError):  # which is told of once: bodies come from the database
            self._retry.call(self._drain, limit_s=RECEIVE_S)
        metrics.HELD.set(self._held_bytes)

    def _drain(self) -> None:
        timeout_s = RECEIVE_S
        while deliveries := self._consumer.receive(256, timeout_s):
            for delivery in deliveries:
                if isinstance(delivery.message, EpisodeFinished):
                    self._keep_body(delivery.message.trajectory)
            self._unacknowledged += deliveries
            self._acknowledge()
            timeout_s = 0.0
        self._acknowledge()

    def _acknowledge(self) -> None:
        if self._unacknowledged:
            self._consumer.ack(self._unacknowledged)
            self._unacknowledged = []

    def _keep_body(self, trajectory: Trajectory) -> None:
        """Hold a body. It is ignored if pinned bodies fill the memory and it is not needed."""
        key = (trajectory.episode_id, trajectory.fence)
        if key in self._bodies:
            return
        size = _bytes(trajectory)
        if not self._make_room(size) and key not in self._pinned:
            return
        self._bodies[key] = trajectory
        self._held_bytes += size

    def _make_room(self, size: int) -> bool:
        """Drop the oldest unpinned bodies; return whether `size` bytes fit then."""
        while self._held_bytes + size > self._bounds.held_bytes:
            oldest = next((key for key in self._bodies if key not in self._pinned), None)
            if oldest is None:
                return False
            self._drop_body(oldest)
        return True

    def _drop_body(self, key: Key) -> None:
        body = self._bodies.pop(key, None)
        if body is not None:
            self._held_bytes -= _bytes(body)

    def _choose_groups(
        self, members: Sequence[ReadyMember], version: int, epoch: int
    ) -> list[TrainableGroup]:
        """Return at most `max_groups` complete groups, fresh and with spread, oldest first.

        Other inspected groups are closed with their reason. Only candidates are read, and they are
        pinned, so a batch larger than `held_bytes` can be collected, too.
        """
        if self._forks is None:
            self._forks = self._store.ask(lambda session: updates.forks(session, self._run_id))
        waiting = deque(list(rows) for _, rows in groupby(members, key=lambda row: row.group_id))
        chosen: list[TrainableGroup] = []
        closing: dict[Reason, list[str]] = {}
        while waiting and len(chosen) < self._bounds.max_groups:
            count = min(len(waiting), self._bounds.max_groups - len(chosen))
            candidates = [waiting.popleft() for _ in range(count)]
            rows = [row for group in candidates for row in group]
            self._pinned = _keys(chosen) | {(row.episode_id, row.fence) for row in rows}
            self._fetch_bodies(rows)
            for each in candidates:
                group = self._assemble_group(each[0].group_id, each)
                if group is None:
                    continue
                reason = classify_group(group, version, self._bounds, self._forks)
                if reason is None:
                    chosen.append(group)
                    continue
                closing.setdefault(reason, []).append(group.group_id)
                self.forget([group])
        self._pinned = _keys(chosen)
        close_useless(self._store, self._run_id, epoch, closing)
        return chosen

    def _fetch_bodies(self, members: Sequence[ReadyMember]) -> None:
        """Read bodies from the database that the broker has not delivered; give up damaged ones."""
        missing = {
            (member.episode_id, member.fence): member.sha256
            for member in members
            if (member.episode_id, member.fence) not in self._bodies
        }
        if not missing:
            return
        wires = self._store.ask(lambda session: bodies.read_bodies(session, list(missing)))
        for key, wire in wires.items():
            try:
                self._keep_body(body_of(wire, missing[key]))
            except MessageError as error:
                self._give_up(key, error)

    def _give_up(self, key: Key, error: MessageError) -> None:
        """Give up a damaged body; its episode is played again."""
        given_up = self._store.transact(
            lambda session: bodies.give_up_body(
                session, *key, max_attempts=self._bounds.max_attempts
            )
        )
        log.error(
            "Stored trajectory cannot be read", episode_id=key[0], again=given_up, error=str(error)
        )

    def _assemble_group(self, group_id: str, rows: Sequence[ReadyMember]) -> TrainableGroup | None:
        """Return the group if every member's body is here and matches its row."""
        bodies_of_rows = [self._bodies.get((row.episode_id, row.fence)) for row in rows]
        present = [each for each in bodies_of_rows if each is not None]
        if len(present) < len(rows):
            return None
        for row, each in zip(rows, present, strict=True):
            if each.sha256 != row.sha256:
                log.error("Trajectory does not match its row", episode_id=row.episode_id)
                self._drop_body((row.episode_id, row.fence))
                return None
        return TrainableGroup(group_id, rows[0].task, tuple(present))


def _keys(chosen: Iterable[TrainableGroup]) -> set[Key]:
    return {(member.episode_id, member.fence) for group in chosen for member in group.members}


def _bytes(trajectory: Trajectory) -> int:
    """Estimate the memory of a trajectory: its arrays and its steps' texts."""
    texts = sum(len(step.call) + len(step.answer) for step in trajectory.steps)
    return 10 * len(trajectory) + texts
