"""What the page *Tasks* shows: plain values, no Streamlit."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.core.types import GroupState
from agentrl.dashboard.viewmodels.run import POINT_GROUPS, POINTS
from agentrl.db.queries import curves, task_outcomes
from agentrl.db.queries.curves import Point, Span
from agentrl.db.queries.task_outcomes import EndCount, ItemSummary
from agentrl.db.store import Store

TASK_GROUPS = 256  # of one task, whose members ended last
ITEM_GROUPS = 512  # of one task, whose items are looked through
ITEMS = 50  # rows of the items' table

Closed = list[tuple[Span, str, dict[GroupState, int]]]  # groups by state, of each span and task


@dataclass(frozen=True, slots=True)
class TasksLook:
    """All tasks of a run. `ends`: (task, state, reason, groups), over the whole run."""

    curve: list[Point]
    ends: list[tuple[str, str, str, int]]

    @property
    def tasks(self) -> list[str]:
        return sorted({task for task, *_ in self.ends})


@dataclass(frozen=True, slots=True)
class TaskLook:
    """Recent data of one task. `solved`: number of groups with c of n solved, by (n, c)."""

    ends: list[EndCount]
    solved: Mapping[tuple[int, int], int]
    items: ItemSummary


def read_tasks(store: Store, run_id: str) -> TasksLook:
    """Read all tasks of a run."""
    with store.read() as session:
        return TasksLook(
            curve=curves.success_by_version(session, run_id, POINTS, POINT_GROUPS),
            ends=task_outcomes.group_ends(session, run_id),
        )


def closed_groups(store: Store, run_id: str) -> Closed:
    """Return the outcomes of the groups of each point."""
    with store.read() as session:
        return curves.closed_groups_by_version(session, run_id, POINTS, POINT_GROUPS)


def read_task(store: Store, run_id: str, task: str) -> TaskLook:
    """Read one task of a run."""
    with store.read() as session:
        return TaskLook(
            ends=task_outcomes.end_counts(session, run_id, task, TASK_GROUPS),
            solved=task_outcomes.solved_among(session, run_id, task, TASK_GROUPS),
            items=task_outcomes.unsolved_items(session, run_id, task, ITEM_GROUPS, ITEMS),
        )


def all_items(store: Store, run_id: str, task: str) -> ItemSummary:
    """Like the items of `read_task`, but for all groups of the run."""
    with store.read() as session:
        return task_outcomes.unsolved_items(session, run_id, task, None, ITEMS)
