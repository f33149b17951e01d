"""What a test runs on: the embedded default, and the services where they are present."""

from importlib.util import find_spec

import psycopg
import pytest
from sqlalchemy.engine import make_url

DATABASES = ("sqlite", "postgres")
BACKENDS = ("embedded", "services")
NEEDS_DEEPSPEED = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="pip install 'agentrl-system[deepspeed]'"
)
PLAIN = "agentrl_test"


def plain_login(url: str) -> str:
    """The URL of the same Postgres database for its new owner, who is no superuser."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            f"DO $$ BEGIN CREATE ROLE {PLAIN} LOGIN CREATEROLE;"
            " EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        )
        if password := make_url(url).password:
            connection.execute(f"ALTER ROLE {PLAIN} PASSWORD '{password}'")
        connection.execute(f"ALTER DATABASE {make_url(url).database} OWNER TO {PLAIN}")
    return make_url(url).set(username=PLAIN).render_as_string(hide_password=False)
