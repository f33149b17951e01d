"""Counts over a whole run for admission, without reading the whole run at every tick.

Only rows that no transaction can change any more are cached: first rounds below the last position
taken, and groups closed LATE_S ago, unless one was rolled back. The rest is read again, so a new
dispatcher counts the same.
"""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from agentrl.db.store import read_clock
from agentrl.db.transitions import item_streams
from agentrl.db.transitions.item_streams import LatestSuccess

LATE_S = 60.0  # a group that closed so long ago: its transaction has ended

Items = Mapping[tuple[str, str], LatestSuccess]


class AdmittedCounts:
    """Admitted groups per task of a run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._counted: dict[str, tuple[int, int]] = {}  # position, groups below it

    def count(self, session: Session, taken: Mapping[str, int]) -> dict[str, int]:
        """Count groups by task, a repeated position once. `taken`: next free position of each."""
        below = {task: self._counted.get(task, (0, 0)) for task in taken}
        since = {task: position for task, (position, _) in below.items()}
        new = item_streams.count_admitted_groups(session, self._run_id, since)
        found = {task: groups + new[task] for task, (_, groups) in below.items()}
        self._counted |= {task: (taken[task], found[task]) for task in taken}
        return found


class LatestItems:
    """The latest result of each item of a run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._items: dict[tuple[str, str], LatestSuccess] = {}
        self._since = 0.0
        self._rolled_back = 0

    def look(self, session: Session) -> Items:
        """Return the latest closed group by (task, item_id)."""
        rolled_back = item_streams.count_rolled_back_groups(session, self._run_id)
        if rolled_back != self._rolled_back:
            self._items, self._since, self._rolled_back = {}, 0.0, rolled_back
        clock = read_clock(session)
        for item, new in item_streams.latest_success(session, self._run_id, self._since).items():
            known = self._items.get(item)
            if known is None or new.position >= known.position:
                self._items[item] = new
        self._since = clock - LATE_S
        return self._items
