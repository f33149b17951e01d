"""Sampled tokens that a run has kept: in stored bodies, and in the journal of what is open."""

from itertools import groupby

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from agentrl.core.journal import UnjudgedEpisode, decode_record
from agentrl.db.models.episodes import Episode, JournaledStep, Step
from agentrl.db.query_parts import columns_of, same_attempt
from agentrl.db.transitions.trajectories.journal import FormerStep, chain


def kept_tokens(session: Session, run_id: str) -> int:
    """Return how many sampled tokens no policy need sample again.

    Call it in one read transaction: a body is stored when its steps leave the journal.
    """
    stored = session.scalar(
        select(func.sum(Step.token_end - Step.token_start))
        .join(Episode, same_attempt(Step, Episode))
        .where(Step.run_id == run_id)
    )
    return (stored or 0) + _journaled_tokens(session, run_id)


def _journaled_tokens(session: Session, run_id: str) -> int:
    """Count the tokens of steps whose body is not stored yet."""
    recorded = select(Step.episode_id).where(
        Step.episode_id == JournaledStep.episode_id, Step.fence == Episode.fence
    )
    query = (
        select(JournaledStep.episode_id, *columns_of(FormerStep, JournaledStep))
        .join(Episode, Episode.episode_id == JournaledStep.episode_id)
        .where(JournaledStep.run_id == run_id, ~recorded.exists())
        .order_by(JournaledStep.episode_id, JournaledStep.fence, JournaledStep.number)
    )
    found = 0
    for _, group in groupby(session.execute(query), key=lambda row: row.episode_id):
        rows = chain([FormerStep(*row[1:]) for row in group]) or ()
        records = [decode_record(row.body) for row in rows]
        steps = [record.step for record in records if not isinstance(record, UnjudgedEpisode)]
        if records and isinstance(records[-1], UnjudgedEpisode):  # it has the steps before it
            steps = list(records[-1].trajectory.steps)
        found += sum(step.end - step.start for step in steps)
    return found
