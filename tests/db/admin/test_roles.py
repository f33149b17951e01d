from contextlib import closing

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from agentrl.core.errors import StoreError
from agentrl.db.admin import migrate
from agentrl.db.admin.roles import READER, let_reader_log_in
from agentrl.db.store import open_store


def test_the_readers_login_reads_and_writes_nothing(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store:
        migrate.upgrade(store)
        with store.engine.connect() as connection:  # never committed: the role is the server's
            let_reader_log_in(connection, "it's a secret")
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            found = driver.execute(
                "SELECT rolcanlogin, rolsuper, rolpassword FROM pg_authid WHERE rolname = %s",
                (READER,),
            ).fetchone()
            assert found is not None
            assert found[:2] == (True, False)
            assert found[2].startswith("SCRAM-SHA-256$"), "the server never saw the password"
            driver.execute(f"SET ROLE {READER}")
            assert driver.execute("SELECT count(*) FROM runs").fetchone() == (0,)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                driver.execute("DELETE FROM runs")
            connection.rollback()


def test_where_nobody_may_let_it_in_the_database_says_so(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store:
        migrate.upgrade(store)
        with store.engine.connect() as connection:
            connection.exec_driver_sql(f"SET ROLE {READER}")
            with pytest.raises(StoreError, match="permission denied") as refused:
                let_reader_log_in(connection, "secret")
            assert "db upgrade" in refused.value.hint


def test_only_postgres_has_logins() -> None:
    engine = create_engine(make_url("sqlite://"))
    with (
        engine.connect() as connection,
        pytest.raises(StoreError, match="only Postgres has logins"),
    ):
        let_reader_log_in(connection, "secret")
    engine.dispose()
