"""Admission: chooses the next groups from rows, in the dispatcher's own transaction.

    places rolled back ─▶ again, as they were
    success of late ─▶ shares of tasks (rows of `mixtures`) ─▶ the task furthest behind its share
             ─▶ its next item that is neither retired nor resting ─▶ its horizon at this version

Everything is counted from rows, so a restarted dispatcher continues unchanged.
"""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from agentrl.core.config.sections.episodes import Dispatch
from agentrl.core.config.sections.tasks import Task
from agentrl.core.logging import get_logger
from agentrl.db.models.runs import Run
from agentrl.db.transitions import item_streams, mixtures
from agentrl.db.transitions.groups import NewGroup
from agentrl.db.transitions.item_streams import LatestSuccess, StreamPlace
from agentrl.db.transitions.mixtures import MixtureDecision
from agentrl.workers.dispatch import curriculum
from agentrl.workers.dispatch.admission_cache import AdmittedCounts, LatestItems
from agentrl.workers.dispatch.item_stream import ItemStream

SAME = 1e-9  # shares that differ by less do not

log = get_logger()


class Admission:
    """Admission of one run. `items`: the item stream of each task."""

    def __init__(
        self,
        plan: Dispatch,
        tasks: Mapping[str, Task],
        run_id: str,
        items: Mapping[str, ItemStream],
    ) -> None:
        """Raises ConfigError for a curriculum that contradicts itself."""
        curriculum.check(plan, tasks)
        self._plan = plan
        self._tasks = tasks
        self._run_id = run_id
        self._items = items
        self._admitted = AdmittedCounts(run_id)
        self._latest_items = LatestItems(run_id)
        window = self._plan.window
        self._rest = curriculum.RestRule(*window, self._plan.window_pause) if window else None

    def next_groups(self, session: Session, run: Run, free: int) -> list[NewGroup]:
        """Return at most `free` groups; none if all items are retired and nothing is repeated."""
        again = item_streams.positions_to_repeat(session, self._run_id)
        known = [place for place in again if place.task in self._tasks]
        new = [self._again(place) for place in known[:free]]
        items = self._latest(session)
        weights = self._weights(items)
        if len(new) == free or not weights:
            return new
        decision, behind, taken = self._shares(session, run, weights)
        while len(new) < free:
            task = curriculum.next_task(decision.shares, behind)
            behind = curriculum.debts_after(task, decision.shares, behind)
            position = self._position(task, taken[task], items)
            taken[task] = position + 1
            new.append(self._first(task, position, run.version))
        return new

    def _latest(self, session: Session) -> Mapping[tuple[str, str], LatestSuccess]:
        """Return the latest results of items, if they are needed."""
        if self._plan.retire_at is None and self._rest is None:
            return {}
        return self._latest_items.look(session)

    def _is_resting(self, latest: LatestSuccess | None) -> bool:
        at = self._plan.retire_at
        return at is not None and latest is not None and latest.success >= at

    def _weights(self, items: Mapping[tuple[str, str], LatestSuccess]) -> dict[str, float]:
        """Return the weights of tasks that have an item left."""
        return {
            name: task.weight
            for name, task in self._tasks.items()
            if any(not self._is_resting(items.get((name, one))) for one in self._items[name].by_id)
        }

    def _position(self, task: str, at: int, items: Mapping[tuple[str, str], LatestSuccess]) -> int:
        """Return the next position whose item is neither retired nor paused."""
        stream = self._items[task]
        while True:
            latest = items.get((task, stream.at(at).item_id))
            if latest is None:
                return at
            rests = self._rest is not None and self._rest.is_resting(latest, len(stream), at)
            if not rests and not self._is_resting(latest):
                return at
            at += 1

    def _shares(
        self, session: Session, run: Run, weights: Mapping[str, float]
    ) -> tuple[MixtureDecision, dict[str, float], dict[str, int]]:
        """Return the current shares, each task's deficit of groups, and its next position."""
        stands = mixtures.latest_decision(session, self._run_id)
        tasks = weights.keys() | (stands.shares.keys() if stands else ())
        taken = item_streams.taken_positions(session, self._run_id, tasks)
        admitted = self._admitted.count(session, taken)
        behind = _behind(stands, admitted)
        if stands is not None and not self._due(stands, run, weights):
            return stands, behind, taken
        learned = self._progress(session, weights)
        floor = self._plan.mixing_floor if learned else 0.0
        shares = curriculum.shares(weights, learned, floor)
        kept = {task: behind.get(task, 0.0) for task in shares}
        decision = MixtureDecision(run.version, shares, learned, admitted, kept)
        mixtures.record_decision(session, self._run_id, decision)
        log.info("Task shares updated", version=run.version, shares=shares)
        return decision, kept, taken

    def _due(self, stands: MixtureDecision, run: Run, weights: Mapping[str, float]) -> bool:
        """Return whether the shares must be computed again: other tasks, version or weights."""
        if stands.shares.keys() != weights.keys():
            return True
        if self._plan.mixing == "progress":
            return stands.version != run.version
        fixed = curriculum.shares(weights, {}, 0.0)
        return any(abs(fixed[task] - share) > SAME for task, share in stands.shares.items())

    def _progress(self, session: Session, weights: Mapping[str, float]) -> dict[str, float | None]:
        """Return the learning progress of each task; empty if shares are fixed."""
        if self._plan.mixing == "fixed":
            return {}
        window = self._plan.mixing_groups
        return {
            task: curriculum.learning_progress(
                item_streams.recent_success(session, self._run_id, task, 2 * window), window
            )
            for task in weights
        }

    def _first(self, task: str, position: int, version: int) -> NewGroup:
        item_id = self._items[task].at(position).item_id
        most = curriculum.turn_limit(self._tasks[task].horizons, version)
        return self._group(StreamPlace(task, position, 0, item_id, most))

    def _again(self, place: StreamPlace) -> NewGroup:
        """Return the group of a position again, with its former turn limit."""
        return self._group(
            StreamPlace(place.task, place.position, place.round + 1, place.item_id, place.horizon)
        )

    def _group(self, place: StreamPlace) -> NewGroup:
        suffix = f"r{place.round}" if place.round else ""
        return NewGroup(
            group_id=f"{self._run_id}-{place.task}-{place.position}{suffix}",
            task=place.task,
            position=place.position,
            round=place.round,
            item_id=place.item_id,
            size=self._plan.group_size,
            horizon=place.horizon,
        )


def _behind(stands: MixtureDecision | None, admitted: Mapping[str, int]) -> dict[str, float]:
    """Return how far each task is behind its share."""
    if stands is None:
        return {}
    since = {task: admitted.get(task, 0) - stands.admitted.get(task, 0) for task in stands.shares}
    return curriculum.carry_debts(stands.shares, stands.owed, since)
