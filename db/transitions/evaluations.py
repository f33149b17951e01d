"""Evaluations: created, filled with episodes as they end, summarised.

The id of an evaluation or its episode is a hash of its settings, so every write can be repeated. If
two processes evaluate the same, the first result counts.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Session

from agentrl.db.models.evaluations import Evaluation, EvaluationEpisode
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry.checkpoints import live_checkpoints
from agentrl.db.registry.lineage import undone_checkpoints
from agentrl.db.store import now

MeasuredItems = set[tuple[str, int]]  # (item, repeat)


def begin_evaluation(
    session: Session, row: Evaluation, requested_items: MeasuredItems
) -> tuple[MeasuredItems, int]:
    """Create the evaluation, or extend it to `requested_items`.

    Returns the existing episodes, and how many are planned. One that was interrupted stays
    incomplete if fewer items are requested than before.
    """
    values = {
        column.name: getattr(row, column.name)
        for column in Evaluation.__table__.columns
        if getattr(row, column.name) is not None
    }
    _insert_new(session, Evaluation, [values | {"created_at": now()}])
    own = Evaluation.evaluation_id == row.evaluation_id
    before = select(Evaluation.planned, Evaluation.items, Evaluation.repeats).where(own)
    planned, items, repeats = session.execute(before.with_for_update()).one()
    done = measured_items(session, row.evaluation_id)
    every = done | requested_items
    session.execute(
        update(Evaluation)
        .where(own)
        .values(
            policy=row.policy,
            items=max(items, len({item for item, _ in every})),
            repeats=max([repeats, *(repeat + 1 for _, repeat in every)]),
            planned=max(planned, len(every)),
        )
    )
    return done, max(planned, len(every))


def lower_planned(session: Session, evaluation_id: str, planned: int) -> None:
    """Leave an episode out of those planned, which are `planned` unless another process changed it.

    One stays, so an evaluation without episodes never looks complete.
    """
    session.execute(
        update(Evaluation)
        .where(Evaluation.evaluation_id == evaluation_id, Evaluation.planned == planned)
        .values(planned=max(1, planned - 1))
    )


def measured_items(session: Session, evaluation_id: str) -> MeasuredItems:
    """Return the stored episodes."""
    key = EvaluationEpisode.item_id, EvaluationEpisode.repeat
    query = select(*key).where(EvaluationEpisode.evaluation_id == evaluation_id)
    return {(item, repeat) for item, repeat in session.execute(query)}


def add_episodes(session: Session, rows: Sequence[dict[str, Any]]) -> None:
    """Insert episodes; existing ones are skipped."""
    _insert_new(session, EvaluationEpisode, [row | {"ended_at": now()} for row in rows])


def evaluation_episodes(session: Session, evaluation_id: str) -> list[EvaluationEpisode]:
    """Return all episodes of an evaluation, by item and repeat."""
    query = (
        select(EvaluationEpisode)
        .where(EvaluationEpisode.evaluation_id == evaluation_id)
        .order_by(EvaluationEpisode.item_id, EvaluationEpisode.repeat)
    )
    return list(session.scalars(query))


def sum_up(session: Session, evaluation_id: str, figures: dict[str, Any]) -> None:
    """Store the figures of an evaluation: columns of `evaluations`."""
    session.execute(
        update(Evaluation)
        .where(Evaluation.evaluation_id == evaluation_id)
        .values(**figures, updated_at=now())
    )


def delete_evaluation(session: Session, evaluation_id: str) -> None:
    """Delete an evaluation with its episodes."""
    for model in (EvaluationEpisode, Evaluation):
        session.execute(delete(model).where(model.evaluation_id == evaluation_id))


def evaluations_of_policy(session: Session, name: str) -> list[Evaluation]:
    """Return the evaluations of a policy, by name or checkpoint id, oldest first.

    A name that several policies had, such as a directory's, means the one evaluated last. A name
    RUN@VERSION does not mean checkpoints that were rolled back.
    """
    is_the_runs = Evaluation.checkpoint_id.not_in(undone_checkpoints())
    named = and_(Evaluation.policy == name, or_(Evaluation.run_id.is_(None), is_the_runs))
    query = (
        select(Evaluation)
        .where(or_(Evaluation.checkpoint_id == name, named))
        .order_by(
            func.coalesce(Evaluation.updated_at, Evaluation.created_at), Evaluation.evaluation_id
        )
    )
    return list(session.scalars(query))


def due_checkpoints(session: Session, run_id: str, every: int) -> list[Checkpoint]:
    """Return the live checkpoints at every `every`-th version, newest first."""
    found = live_checkpoints(session, run_id)
    return [row for row in reversed(found) if row.version % every == 0]


def _insert_new(
    session: Session, model: type[DeclarativeBase], rows: Sequence[dict[str, Any]]
) -> None:
    """Insert rows; rows with an existing key are skipped."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    for row in rows:  # a time of the database's clock is no parameter: no bulk insert
        session.execute(dialect.insert(model).values(**row).on_conflict_do_nothing())
