"""What a test runs on: the embedded default, and the services where they are present."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

from agentrl import broker
from agentrl.broker.api import Broker

DATABASES = ("sqlite", "postgres")
BACKENDS = ("embedded", "services")
NEEDS_DEEPSPEED = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="pip install 'agentrl-system[deepspeed]'"
)
PLAIN = "agentrl_test"


@contextmanager
def embedded_broker(folder: Path, run_id: str) -> Iterator[Broker]:
    """Open an embedded broker in the folder, with the queues of the run."""
    with closing(broker.connect(f"sqlite:///{folder / 'queue.db'}")) as opened:
        opened.declare_run(run_id)
        yield opened


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
