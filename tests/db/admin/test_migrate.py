from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from agentrl.core.errors import StoreError
from agentrl.db.admin import migrate
from agentrl.db.audit.accounting import VIEWS
from agentrl.db.audit.reporting_views import READING
from agentrl.db.store import Store, open_store


def test_an_upgrade_twice_changes_nothing(store: Store) -> None:
    assert migrate.upgrade(store) == migrate.upgrade(store) == migrate.head()
    migrate.require_current(store)


def test_the_models_are_what_the_migrations_make(store: Store) -> None:
    migrate.check(store)


def test_every_view_can_be_asked(store: Store) -> None:
    with store.read() as session:
        for view in (*VIEWS, *READING):
            assert session.execute(text(f"SELECT * FROM {view}")).all() == []  # noqa: S608


@pytest.fixture
def revision(store: Store, request: pytest.FixtureRequest) -> Iterator[str]:
    """Gives the store a revision of which this code knows nothing, and takes it back after."""
    with store.write() as session:
        current = session.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        session.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": request.param})
    yield request.param
    with store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": current})


@pytest.mark.parametrize(
    ("revision", "said", "hint"),
    [
        ("9999", "9999 is newer than this version", "update AgentRL"),
        ("0021", "0021 is older than 0026", "or start with a new store"),
    ],
    indirect=["revision"],
)
def test_a_schema_without_a_migration_is_refused_and_left_alone(
    store: Store, revision: str, said: str, hint: str
) -> None:
    for ask in (migrate.upgrade, migrate.ensure, migrate.require_current):
        with pytest.raises(StoreError, match=said) as refused:
            ask(store)
        assert hint in refused.value.hint


def test_a_store_without_schema_is_named_with_its_mend(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path / 'new.db'}")) as store:
        with pytest.raises(StoreError, match="has no tables yet") as refused:
            migrate.require_current(store)
        assert "agentrl db upgrade" in refused.value.hint


def test_a_store_that_is_behind_is_upgraded_and_another_one_left_alone(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path / 'new.db'}")) as store:
        migrate.ensure(store)
        migrate.require_current(store)
        with store.write() as session:
            session.execute(text("DROP VIEW accounting"))
        migrate.ensure(store)
        views = text("SELECT name FROM sqlite_master WHERE type = 'view' AND name = 'accounting'")
        with store.read() as session:
            assert session.execute(views).all() == []


def test_a_view_of_the_users_keeps_no_process_from_starting(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store:
        migrate.ensure(store)
        with store.write() as session:
            session.execute(text("CREATE VIEW ours AS SELECT kind FROM accounting"))
        migrate.ensure(store)
        with pytest.raises(StoreError, match="was not upgraded") as refused:
            migrate.upgrade(store)
        assert "your own views" in refused.value.hint


def test_a_session_that_reads_a_view_keeps_no_process_from_starting(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store:
        migrate.ensure(store)
        with store.read() as reader:
            reader.execute(text("SELECT count(*) FROM accounting"))
            migrate.ensure(store)
