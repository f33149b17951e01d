"""Bodies and steps: written in bulk, duplicates are ignored, damaged bodies are replaced."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import delete, select, text, tuple_
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DataError, IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Session

from agentrl.core.errors import StoreError
from agentrl.core.types import EpisodeState, Reason
from agentrl.db.models.episodes import Episode, Step, StoredTrajectory
from agentrl.db.models.runs import Run
from agentrl.db.transitions.episodes import ClaimedEpisode, lose_body
from agentrl.db.transitions.trajectories import journal

Rows = Sequence[dict[str, Any]]
UNFIT = (DataError, IntegrityError, psycopg.DataError, psycopg.IntegrityError, OverflowError)


class UnstorableBody(StoreError):
    """A row cannot be stored: a number or text is too large, NUL in a name, NaN in SQLite."""


class _Attempt(NamedTuple):
    """The current attempt of an episode."""

    fence: int
    started_at: float | None
    state: EpisodeState

    def has_finished(self, fence: int) -> bool:
        """Return whether the attempt with this fence has ended the episode."""
        return self.fence == fence and self.state == EpisodeState.FINISHED


def store_bodies(session: Session, bodies: Rows, steps: Rows) -> int:
    """Insert rows of `trajectories` and `steps`; existing rows stay unchanged.

    Each of `bodies` also has `started_at`, the start of its attempt. Returns the number of ignored
    bodies, whose attempt is unknown: their run was deleted, or the database lost its last commits.
    They can never be trained. The journal of a finished episode ends with its body. Raises
    UnstorableBody; then the transaction is rolled back.
    """
    try:
        known = _known_keys(session, bodies)
        storable = [_row_with_size(row) for row in bodies if _is_known(row, known)]
        keys = {_key(row) for row in storable}
        _insert_new(session, StoredTrajectory, storable)
        _insert_new(session, Step, [row for row in steps if _key(row) in keys])
        journal.forget_episodes(
            session, [name for name, fence in keys if known[name].has_finished(fence)]
        )
    except UNFIT as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise UnstorableBody(f"the store cannot hold it: {reason}") from error
    return len(bodies) - len(storable)


def _key(row: dict[str, Any]) -> tuple[str, int]:
    return row["episode_id"], row["fence"]


def _row_with_size(row: dict[str, Any]) -> dict[str, Any]:
    columns = {name: value for name, value in row.items() if name != "started_at"}
    return columns | {"body_bytes": len(row["body"])}


def _is_known(row: dict[str, Any], known: Mapping[str, _Attempt]) -> bool:
    """Return whether the database has issued the attempt of a body.

    A database that lost its newest commits may issue a fence again. A body whose attempt started
    before the one in the row belongs to the attempt that the database forgot. (A worker of an older
    version states a slightly later start than the row.)
    """
    attempt = known.get(row["episode_id"])
    if attempt is None or row["fence"] != attempt.fence:
        return attempt is not None and row["fence"] < attempt.fence
    return attempt.started_at is not None and row["started_at"] >= attempt.started_at


def _known_keys(session: Session, bodies: Rows) -> dict[str, _Attempt]:
    """Return the current attempt of each episode, and lock the runs against deletion."""
    runs = sorted({row["run_id"] for row in bodies})
    session.execute(
        select(Run.run_id).where(Run.run_id.in_(runs)).with_for_update(read=True, key_share=True)
    )
    attempts: dict[str, _Attempt] = {}
    ids = [row["episode_id"] for row in bodies]
    for start in range(0, len(ids), 500):
        query = select(Episode.episode_id, Episode.fence, Episode.started_at, Episode.state).where(
            Episode.episode_id.in_(ids[start : start + 500])
        )
        attempts |= {
            name: _Attempt(fence, started_at, EpisodeState(state))
            for name, fence, started_at, state in session.execute(query)
        }
    return attempts


def read_bodies(session: Session, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], bytes]:
    """Return the stored bodies of (episode_id, fence), as received."""
    wires: dict[tuple[str, int], bytes] = {}
    for start in range(0, len(keys), 200):
        query = select(
            StoredTrajectory.episode_id, StoredTrajectory.fence, StoredTrajectory.body
        ).where(
            tuple_(StoredTrajectory.episode_id, StoredTrajectory.fence).in_(
                keys[start : start + 200]
            )
        )
        wires |= {(episode_id, fence): body for episode_id, fence, body in session.execute(query)}
    return wires


def give_up_body(session: Session, episode_id: str, fence: int, *, max_attempts: int) -> bool:
    """Delete a body that cannot be trained, and re-issue its attempt (body_damaged).

    False: the row has moved on, and nothing changed.
    """
    row = session.get(Episode, episode_id, populate_existing=True)
    if row is None:
        return False
    claimed = dataclasses.replace(ClaimedEpisode.of(row), fence=fence)
    if not lose_body(session, claimed, max_attempts=max_attempts, reason=Reason.BODY_DAMAGED):
        return False
    session.execute(
        delete(StoredTrajectory)
        .where(StoredTrajectory.episode_id == episode_id, StoredTrajectory.fence == fence)
        .execution_options(synchronize_session=False)
    )
    return True


def _insert_new(session: Session, model: type[DeclarativeBase], rows: Rows) -> None:
    if not rows:
        return
    if session.get_bind().dialect.name == "postgresql":
        _copy(session, model, rows)
    else:
        session.execute(insert(model).on_conflict_do_nothing(), list(rows))


def _copy(session: Session, model: type[DeclarativeBase], rows: Rows) -> None:
    """COPY into a temporary table, then insert new rows: COPY itself cannot skip duplicates."""
    table = model.__tablename__
    columns = list(rows[0])
    names = ", ".join(f'"{column}"' for column in columns)
    session.execute(
        text(
            f"CREATE TEMP TABLE IF NOT EXISTS new_{table} "
            f"(LIKE {table} INCLUDING DEFAULTS) ON COMMIT DELETE ROWS"
        )
    )
    cursor = session.connection().connection.cursor()
    try:
        with cursor.copy(f"COPY new_{table} ({names}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row([row[column] for column in columns])
    except psycopg.OperationalError as error:  # this cursor is below SQLAlchemy, which wraps others
        raise OperationalError("COPY", None, error) from error
    session.execute(
        text(
            f"INSERT INTO {table} ({names}) SELECT {names} FROM new_{table} "  # noqa: S608
            "ON CONFLICT DO NOTHING"
        )
    )
