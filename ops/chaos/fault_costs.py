"""Costs of faults: updates rolled back, episodes played again, idle time."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from agentrl.db.queries.liveness import Liveness

GRACE_S = 45.0  # after a fault is over, in which what it did to others may show: leases, deadlines
QUIET_S = 5.0  # without a change that no training is idle for
TRAINER_DIES = ("kill trainer", "kill everything", "rival trainer", "lose_commit store")
WORKER_DIES = ("worker", "envs", "container", "everything")  # or its environment; by target
EPISODE_DIES = (
    "lose_commit store",  # its row
    "small_messages broker",  # its body is too large
    "rival trainer",  # its worker: the supervisor leaves with the replaced trainer
)


class EndedFault(Protocol):
    """A fault that was done. Times are monotonic seconds."""

    @property
    def name(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def ended_at(self) -> float | None: ...


@dataclass(slots=True)
class FaultCosts:
    """`rolled_back`: updates lost though the trainer had not died and the database lost no commit;
    `failed_without_fault`: attempts that failed or were given up though neither their worker nor
    their environment had ended, the database had their rows and the broker took their bodies;
    `idle_s`: in which nothing was done though nothing was broken.
    """

    rolled_back: int = 0
    failed_without_fault: int = 0
    idle_s: float = 0.0
    _seen: Liveness | None = None
    _moved_at: float = 0.0

    def look(self, seen: Liveness | None, faults: Iterable[EndedFault], at: float) -> None:
        """Compare with the look before. `at`: monotonic seconds."""
        done = list(faults)
        before, self._seen = self._seen, seen or self._seen
        if seen is None or before is None:
            self._moved_at = at
            return
        of_late = [
            fault for fault in done if fault.ended_at is None or at - fault.ended_at < GRACE_S
        ]
        if not any(fault.name in TRAINER_DIES for fault in of_late):
            self.rolled_back += max(0, seen.rolled_back - before.rolled_back)
        if not any(
            fault.target.startswith(WORKER_DIES) or fault.name in EPISODE_DIES for fault in of_late
        ):
            self.failed_without_fault += max(0, seen.replays - before.replays)
        if any(fault.ended_at is None for fault in done):
            self._moved_at = at
        elif seen.movement != before.movement:
            self.idle_s += max(0.0, at - self._moved_at - QUIET_S)
            self._moved_at = at
