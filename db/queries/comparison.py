"""Evaluations of a run's newest checkpoints by item, for the comparison of two runs."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from agentrl.core.types import SOLVED
from agentrl.db.models.evaluations import Evaluation, EvaluationEpisode
from agentrl.db.registry.lineage import undone_checkpoints

Kind = tuple[str, str, float, str]  # task, split, temperature, settings: alike where all are equal


@dataclass(frozen=True, slots=True)
class ItemScores:
    """The share of solved repeats of each item at `version`."""

    version: int
    items: Mapping[str, float]


def latest_item_scores(session: Session, run_id: str) -> dict[Kind, ItemScores]:
    """Return, for each kind of evaluation, the complete one of the newest version.

    Checkpoints that were rolled back do not count.
    """
    kind = (Evaluation.task, Evaluation.split, Evaluation.temperature, Evaluation.settings)
    version = func.coalesce(Evaluation.version, 0)  # a run's checkpoints have one
    query = (
        select(Evaluation.evaluation_id, version, *kind)
        .where(Evaluation.run_id == run_id, Evaluation.is_complete)
        .where(Evaluation.checkpoint_id.not_in(undone_checkpoints()))
        .order_by(version, Evaluation.created_at, Evaluation.evaluation_id)
    )
    newest: dict[Kind, tuple[str, int]] = {}
    for row in session.execute(query):
        newest[row[2], row[3], row[4], row[5]] = row[0], row[1]
    items = _items(session, [evaluation_id for evaluation_id, _ in newest.values()])
    return {
        each: ItemScores(version, items[evaluation_id])
        for each, (evaluation_id, version) in newest.items()
        if evaluation_id in items
    }


def _items(session: Session, evaluation_ids: list[str]) -> dict[str, dict[str, float]]:
    """Return the share of solved repeats of each item, by evaluation."""
    solved = func.avg(case((EvaluationEpisode.score >= SOLVED, 1.0), else_=0.0))
    key = EvaluationEpisode.evaluation_id, EvaluationEpisode.item_id
    query = select(*key, solved).where(key[0].in_(evaluation_ids)).group_by(*key).order_by(*key)
    found: dict[str, dict[str, float]] = {}
    for evaluation_id, item_id, share in session.execute(query):
        found.setdefault(evaluation_id, {})[item_id] = float(share)
    return found
