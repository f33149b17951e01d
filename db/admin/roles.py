"""The read-only Postgres role that SQL consoles and the dashboard use.

    db upgrade ─▶ role agentrl_reader (NOLOGIN), SELECT on every table and view
    consoles   ─▶ SET ROLE agentrl_reader, in read-only transactions
    db reader  ─▶ the role may log in, for a dashboard without any other password

If the database user may not create roles, only read-only transactions protect the data. A superuser
session could regain its rights, read files of the server and run programs there, so a console
refuses statements in such a session.
"""

from typing import Any

from sqlalchemy import Connection, Engine, text

from agentrl.core.errors import StoreError

READER = "agentrl_reader"

# The role is the server's, the grants are this database's; another database may make the role at
# the same moment. What the user may not do is left undone.
GRANT = f"""
DO $$ BEGIN
  BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{READER}') THEN
      CREATE ROLE {READER} NOLOGIN;
    END IF;
  EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
  END;
  BEGIN
    IF NOT pg_has_role('{READER}', 'MEMBER') THEN
      EXECUTE format('GRANT {READER} TO %I', current_user);
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO {READER}', current_schema());
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO {READER}', current_schema());
  EXCEPTION WHEN undefined_object OR insufficient_privilege THEN NULL;
  END;
END $$
"""  # noqa: S608 - a constant
USABLE = f"""
SELECT 1 FROM pg_roles WHERE rolname = '{READER}' AND pg_has_role(oid, 'MEMBER')
  AND has_table_privilege(oid, to_regclass('alembic_version'), 'SELECT')
"""  # noqa: S608 - a constant
POWERS = """
SELECT session_user FROM pg_roles r WHERE r.rolname = session_user AND (r.rolsuper OR EXISTS (
  SELECT 1 FROM pg_roles p WHERE p.rolname IN
    ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files')
  AND pg_has_role(r.oid, p.oid, 'MEMBER')))
"""


def grant_reader(connection: Connection) -> None:
    """Grant the role read access to existing tables and views; nothing on SQLite."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(GRANT))


def let_reader_log_in(connection: Connection, password: str) -> None:
    """Set the role's password. Only its verifier is sent, so no server log contains it.

    Raises StoreError if the database is not Postgres, or does not allow it.
    """
    if connection.dialect.name != "postgresql":
        raise StoreError("only Postgres has logins", hint="set store.url to a Postgres database")
    import psycopg
    from psycopg import sql

    driver: Any = connection.connection.driver_connection
    verifier = driver.pgconn.encrypt_password(password.encode(), READER.encode())
    change = sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(
        sql.Identifier(READER), sql.Literal(verifier.decode())
    )
    try:
        driver.execute(change)
    except psycopg.Error as error:
        reason = str(error).splitlines()[0]
        raise StoreError(
            f"role {READER}: {reason}",
            hint="run `agentrl db upgrade CONFIG` as the owner of the database",
        ) from error


def become_reader(connection: Any, record: Any) -> None:
    """Switch a new psycopg connection to the role, if it exists."""
    record.info[READER] = bool(connection.execute(USABLE).fetchone())
    if record.info[READER]:
        connection.execute(f"SET ROLE {READER}")
    connection.commit()


def refuse_powers(engine: Engine) -> None:
    """Raise StoreError if the login has access to the database host; nothing on SQLite."""
    if engine.dialect.name != "postgresql":
        return
    with engine.connect() as connection:
        name = connection.scalar(text(POWERS))
    if name is not None:
        raise StoreError(
            f"SQL: refused, because the login {name} is a superuser or may read the server's files",
            hint=f"run `agentrl db reader CONFIG`, then use {READER} as the user in store.url",
        )
