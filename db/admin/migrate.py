"""Migrates a database to the schema of this version, under a lock and a statement timeout."""

import io
from functools import partial
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from agentrl.core.errors import StoreError, StoreUnavailable
from agentrl.db.admin.roles import grant_reader
from agentrl.db.audit.accounting import create_views
from agentrl.db.failures import driver_words, is_transient
from agentrl.db.store import Store

LOCK = 7238411  # any number that only AgentRL's migrations use
STATEMENT_TIMEOUT_MS = 60_000


def upgrade(store: Store) -> str:
    """Run missing migrations and recreate the views; return the new revision.

    It is atomic. Raises StoreError if the database refuses, and StoreUnavailable if it is
    unavailable or full for too long.
    """
    try:
        store.retry.call(partial(_upgrade, store))
    except DBAPIError as error:
        kind = StoreUnavailable if is_transient(error) else StoreError
        raise kind(
            f"database {store.url} was not upgraded: {driver_words(error)}",
            hint="check free space, locks of other sessions, and your own views on our tables "
            "(drop those, run the upgrade, create them again)",
        ) from error
    return head()


def _upgrade(store: Store) -> None:
    with store.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            for bound in ("statement_timeout", "lock_timeout"):
                connection.execute(text(f"SET LOCAL {bound} = {STATEMENT_TIMEOUT_MS}"))
            connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        refuse_unknown(connection)
        command.upgrade(_config(connection), "head")
        create_views(connection)
        grant_reader(connection)


def ensure(store: Store) -> None:
    """`upgrade` an outdated database; write nothing to a current one.

    Recreating views waits for their readers and fails if a user's view reads them, so a change of
    db/audit/accounting.py, db/audit/reporting_views.py or `core.types.Reason`, which is in their
    text, needs a migration. Raises StoreError.
    """
    if store.ask(_known_revision) != head():
        upgrade(store)


def check(store: Store) -> None:
    """`alembic check`: raises if the models differ from what the migrations make."""
    with store.engine.begin() as connection:
        command.check(_config(connection))


def require_current(store: Store) -> None:
    """Raise StoreError if the database has not this code's revision."""
    revision = store.ask(_known_revision)
    if revision != head():
        state = f"has schema {revision} instead of {head()}" if revision else "has no tables yet"
        raise StoreError(f"database {store.url} {state}", hint="run `agentrl db upgrade CONFIG`")


def _known_revision(session: Session) -> str | None:
    """Return the revision, if known. Raises StoreError if this code has no such migration."""
    refuse_unknown(session.connection())
    return _revision(session.connection())


def refuse_unknown(connection: Connection) -> None:
    """Raise StoreError if newer code made the database, or code before the oldest migration."""
    revision = _revision(connection)
    known = {script.revision for script in _scripts().walk_revisions()}
    if revision is None or revision in known:
        return
    if revision > (oldest := min(known)):
        raise StoreError(
            f"the database schema {revision} is newer than this version of AgentRL",
            hint="update AgentRL",
        )
    raise StoreError(
        f"the database schema {revision} is older than {oldest}, the first of this AgentRL",
        hint="run `agentrl db upgrade CONFIG` with the last AgentRL that has its migrations "
        "(before 2026-11-28), or start with a new store",
    )


def head() -> str:
    """Return the revision that this code needs."""
    return _scripts().get_current_head() or ""


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parents[1] / "migrations"))


def _config(connection: Connection) -> Config:
    config = Config(stdout=io.StringIO())  # `check` talks
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    config.attributes["connection"] = connection
    return config
