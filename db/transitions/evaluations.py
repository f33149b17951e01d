"""What was measured: an evaluation is begun, its episodes are kept as they end, it is summed up.

Evaluation and episode are named by what they are of, so whoever measures again finds them: every
write may be repeated, and of two processes that measure the same the first word stands.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Session

from agentrl.db.models import Checkpoint, Evaluation, EvaluationEpisode
from agentrl.db.registry.checkpoints import live_checkpoints
from agentrl.db.store import now

Done = set[tuple[str, int]]  # (item, repeat)


def begin(session: Session, row: Evaluation, wished: Done) -> Done:
    """Make the evaluation, or widen the one that stands, to `wished`; what is measured already."""
    values = {
        column.name: getattr(row, column.name)
        for column in Evaluation.__table__.columns
        if getattr(row, column.name) is not None
    }
    _insert_new(session, Evaluation, [values | {"created_at": now()}])
    done = measured(session, row.evaluation_id)
    every = done | wished
    session.execute(
        update(Evaluation)
        .where(Evaluation.evaluation_id == row.evaluation_id)
        .values(
            policy=row.policy,
            items=len({item for item, _ in every}),
            repeats=max((repeat for _, repeat in every), default=0) + 1,
            planned=len(every),
        )
    )
    return done


def measured(session: Session, evaluation_id: str) -> Done:
    """Which episodes stand."""
    key = EvaluationEpisode.item_id, EvaluationEpisode.repeat
    query = select(*key).where(EvaluationEpisode.evaluation_id == evaluation_id)
    return {(item, repeat) for item, repeat in session.execute(query)}


def add(session: Session, rows: Sequence[dict[str, Any]]) -> None:
    """Keep episodes; those that are known already are passed over."""
    _insert_new(session, EvaluationEpisode, [row | {"ended_at": now()} for row in rows])


def episodes(session: Session, evaluation_id: str) -> list[EvaluationEpisode]:
    """Every episode of an evaluation, by item and repeat."""
    query = (
        select(EvaluationEpisode)
        .where(EvaluationEpisode.evaluation_id == evaluation_id)
        .order_by(EvaluationEpisode.item_id, EvaluationEpisode.repeat)
    )
    return list(session.scalars(query))


def sum_up(session: Session, evaluation_id: str, figures: dict[str, Any]) -> None:
    """Write an evaluation's figures: columns of `evaluations`."""
    session.execute(
        update(Evaluation)
        .where(Evaluation.evaluation_id == evaluation_id)
        .values(**figures, updated_at=now())
    )


def forget(session: Session, evaluation_id: str) -> None:
    """Drop an evaluation and what it measured."""
    for model in (EvaluationEpisode, Evaluation):
        session.execute(delete(model).where(model.evaluation_id == evaluation_id))


def of_policy(session: Session, name: str) -> list[Evaluation]:
    """All that was measured of a policy, by its name or its checkpoint's id, the oldest first.

    A name that several policies have had, such as a directory's, means the one measured last.
    """
    query = (
        select(Evaluation)
        .where(or_(Evaluation.checkpoint_id == name, Evaluation.policy == name))
        .order_by(
            func.coalesce(Evaluation.updated_at, Evaluation.created_at), Evaluation.evaluation_id
        )
    )
    return list(session.scalars(query))


def due(session: Session, run_id: str, every: int) -> list[Checkpoint]:
    """Live checkpoints at every `every`-th version, the newest first."""
    found = live_checkpoints(session, run_id)
    return [row for row in reversed(found) if row.version % every == 0]


def _insert_new(
    session: Session, model: type[DeclarativeBase], rows: Sequence[dict[str, Any]]
) -> None:
    """Insert rows; those whose key is taken are passed over."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    for row in rows:  # a time of the database's clock is no parameter: no bulk insert
        session.execute(dialect.insert(model).values(**row).on_conflict_do_nothing())
