"""The figures of updates by version, with bounded work for runs of any length."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from agentrl.core.types import UpdateState
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Update


@dataclass(frozen=True, slots=True)
class UpdateFigures:
    """The figures of an update. `at_s`: from the start of the run to the commit.

    `seconds`: from the batch's arrival to the commit. `since_s`: since the previous commit; for the
    first update since the start of the run. `groups`, `episodes`, `trained_tokens`: what it learned
    from, 0 if it was skipped.
    """

    version: int
    state: str
    at_s: float
    seconds: float
    since_s: float
    groups: int
    episodes: int
    trained_tokens: int
    metrics: Mapping[str, Any]


def update_figures(session: Session, run_id: str, most: int) -> list[UpdateFigures]:
    """Return at most `most` updates of the live lineage, evenly apart, oldest first."""
    run = session.get_one(Run, run_id, populate_existing=True)
    shown = {max(1, round(run.version * place / most)) for place in range(1, most + 1)}
    before = func.lag(Update.committed_at, 1, run.created_at).over(order_by=Update.version)
    live = (
        select(Update.update_id, Update.version, before.label("before"))
        .where(Update.run_id == run_id, Update.is_live)
        .subquery()
    )
    query = (
        select(Update, live.c.before)
        .join(live, live.c.update_id == Update.update_id)
        .where(live.c.version.in_(shown))
        .order_by(Update.version)
    )
    return [
        UpdateFigures(
            version=update.version,
            state=update.state,
            at_s=update.committed_at - run.created_at,
            seconds=update.committed_at - update.started_at,
            since_s=update.committed_at - before_at,
            groups=0 if update.state == UpdateState.SKIPPED else update.groups,
            episodes=0 if update.state == UpdateState.SKIPPED else update.episodes,
            trained_tokens=0 if update.state == UpdateState.SKIPPED else update.loss_tokens,
            metrics=dict(update.metrics),
        )
        for update, before_at in session.execute(query)
    ]
