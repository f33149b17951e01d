"""Mixtures: the share of groups per task that the dispatcher chose, stored for SQL."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from agentrl.db.models.runs import Mixture
from agentrl.db.store import read_clock


@dataclass(frozen=True, slots=True)
class MixtureDecision:
    """Shares from a version on. By task; `admitted`: groups until then, `owed`: behind its share.

    `progress`: None where it was not asked or could not be told.
    """

    version: int
    shares: Mapping[str, float]
    progress: Mapping[str, float | None]
    admitted: Mapping[str, int]
    owed: Mapping[str, float]


def latest_decision(session: Session, run_id: str) -> MixtureDecision | None:
    """The decision that holds."""
    last = select(func.max(Mixture.number)).where(Mixture.run_id == run_id).scalar_subquery()
    rows = session.scalars(
        select(Mixture).where(Mixture.run_id == run_id, Mixture.number == last)
    ).all()
    if not rows:
        return None
    return MixtureDecision(
        version=rows[0].version,
        shares={row.task: row.share for row in rows},
        progress={row.task: row.progress for row in rows},
        admitted={row.task: row.admitted for row in rows},
        owed={row.task: row.owed for row in rows},
    )


def record_decision(session: Session, run_id: str, decision: MixtureDecision) -> None:
    """From now on it holds."""
    last = session.scalar(select(func.max(Mixture.number)).where(Mixture.run_id == run_id))
    clock = read_clock(session)
    session.add_all(
        Mixture(
            run_id=run_id,
            number=0 if last is None else last + 1,
            task=task,
            version=decision.version,
            share=share,
            progress=decision.progress.get(task),
            admitted=decision.admitted.get(task, 0),
            owed=decision.owed.get(task, 0.0),
            decided_at=clock,
        )
        for task, share in decision.shares.items()
    )
    session.flush()
