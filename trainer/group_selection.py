"""Which ready groups an update trains on: those with spread, fresh, and of enough variance.

group ─▶ classify_group: filtered · stale · ready    batch ─▶ select_varied: trained · left out

Useless groups are closed at once; those left out of a batch are closed with its update.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from agentrl.core.telemetry import metrics
from agentrl.core.types import CURRENT, GroupState, Reason
from agentrl.db.store import Store
from agentrl.db.transitions import groups, updates
from agentrl.trainer.algorithm.presets import INBOX_BYTES
from agentrl.trainer.batch import TakenGroups, TrainableGroup, has_spread, split_by_variance

CLOSED_AS = {  # why groups are closed without an update, with their state
    Reason.ZERO_SPREAD: GroupState.FILTERED,
    Reason.TOO_STALE: GroupState.STALE,
}


@dataclass(frozen=True, slots=True)
class InboxBounds:
    """Limits of a batch. Staleness and lag in updates.

    `held_bytes`: memory for bodies. The oldest are dropped, and read from the database when a batch
    needs them. Bodies of the current batch stay, even beyond the limit. `taught_tasks`: tasks
    with a teacher, whose groups need no spread. `keep_share`: see `split_by_variance`.
    """

    min_groups: int
    max_groups: int
    max_staleness: int
    max_lag: int
    abnormal_reward: float | None
    max_attempts: int
    held_bytes: int = INBOX_BYTES
    taught_tasks: Collection[str] = ()
    keep_share: float = 1.0


def classify_group(
    group: TrainableGroup, version: int, bounds: InboxBounds, forks: Mapping[str, int]
) -> Reason | None:
    """Return why the update from `version` may not train on the group; None: it may."""
    if group.task not in bounds.taught_tasks and not has_spread(group, bounds.abnormal_reward):
        return Reason.ZERO_SPREAD
    return Reason.TOO_STALE if is_too_old(group, version, bounds, forks) else None


def select_varied(groups: Sequence[TrainableGroup], bounds: InboxBounds) -> TakenGroups:
    """Leave out the groups of a batch that have too little variance."""
    return split_by_variance(groups, bounds.keep_share, bounds.abnormal_reward, bounds.taught_tasks)


def close_useless(
    store: Store, run_id: str, epoch: int, closing: Mapping[Reason, list[str]]
) -> None:
    """Close groups that no update may train on. Raises TrainerReplaced."""
    if not closing:
        return

    def close(session: Session) -> None:
        updates.lock_run(session, run_id, epoch)
        for reason, group_ids in closing.items():
            groups.close_groups(session, sorted(group_ids), CLOSED_AS[reason], reason)

    store.transact(close)
    for reason, group_ids in closing.items():
        metrics.CLOSED.labels(status=CLOSED_AS[reason]).inc(len(group_ids))


def is_too_old(
    group: TrainableGroup, version: int, bounds: InboxBounds, forks: Mapping[str, int] | None = None
) -> bool:
    """Return whether a policy with trainable tokens exceeds its bound of staleness or lag.

    `forks`: versions at which the lines of rolled-back policies left the live lineage. The distance
    of such a policy is the number of updates on both lines since then.
    """
    for member in group.members:
        for policy in member.policies:
            if policy.masked or policy.version < 0:  # an external model is of no version
                continue
            bound = bounds.max_staleness if policy.track == CURRENT else bounds.max_lag
            fork = (forks or {}).get(policy.checkpoint_id)
            ahead = 0 if fork is None else 2 * (policy.version - fork)
            if version - policy.version + ahead > bound:
                return True
    return False
