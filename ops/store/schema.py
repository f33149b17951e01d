"""`agentrl db`: the schema of the database."""

from contextlib import closing
from pathlib import Path

from alembic.util.exc import CommandError

from agentrl.core import config_loading
from agentrl.core.config.secrets import secret
from agentrl.core.errors import StoreError
from agentrl.db.admin import migrate
from agentrl.db.admin.readonly import refuse_absent
from agentrl.db.admin.roles import READER, let_reader_log_in
from agentrl.db.store import open_store


def upgrade(path: Path) -> str:
    """Apply what is missing; what to tell. Raises StoreError."""
    with closing(open_store(config_loading.load(path).store_url())) as store:
        return f"database {store.url} has schema {migrate.upgrade(store)}"


def reader(path: Path, variable: str) -> str:
    """Let the role that only reads log in with the variable's value; what to tell.

    Raises ConfigError, StoreError.
    """
    password = secret(variable)
    with closing(open_store(config_loading.load(path).store_url())) as store:
        with store.engine.begin() as connection:
            let_reader_log_in(connection, password)
        return f"{READER} can log in to database {store.url}"


def check(path: Path) -> str:
    """What to tell of a store that is as the models say. Raises StoreError for one that is not."""
    url = config_loading.load(path).store_url()
    refuse_absent(url)
    with closing(open_store(url)) as store:
        try:
            migrate.require_current(store)
            migrate.check(store)
        except CommandError as error:
            raise StoreError(
                f"database {store.url}: {error}", hint="run `agentrl db upgrade CONFIG`"
            ) from error
        return (
            f"database {store.url} has schema {migrate.head()} and matches this version of AgentRL"
        )
