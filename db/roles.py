"""The role of Postgres that consoles and the dashboard act as: it may read, and nothing else.

    db upgrade ─▶ role agentrl_reader (NOLOGIN), SELECT on every table and view
    consoles   ─▶ SET ROLE agentrl_reader, in read-only transactions
    db reader  ─▶ the role may log in itself, for a dashboard that knows no other password

Where the store's user may not make roles there is none, and read-only transactions alone remain. A
superuser's session could take its own rights back: give consoles a plain login on such a server.
"""

from typing import Any

from sqlalchemy import Connection, text

from core.errors import StoreError

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


def grant_reader(connection: Connection) -> None:
    """Let the role read what stands now; nothing on SQLite."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(GRANT))


def let_reader_log_in(connection: Connection, password: str) -> None:
    """Give the role a password; the server is sent its verifier alone, so no log shows it.

    Raises StoreError where the database is not Postgres, or does not let this user.
    """
    if connection.dialect.name != "postgresql":
        raise StoreError("only Postgres has logins", mend="name a store.url of Postgres")
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
        told = str(error).splitlines()[0]
        raise StoreError(
            f"role {READER}: {told}", mend="agentrl db upgrade, as its owner"
        ) from error


def become_reader(connection: Any, record: Any) -> None:
    """Of a fresh psycopg connection: act as the role, where there is one."""
    record.info[READER] = bool(connection.execute(USABLE).fetchone())
    if record.info[READER]:
        connection.execute(f"SET ROLE {READER}")
    connection.commit()
