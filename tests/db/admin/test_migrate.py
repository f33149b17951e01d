from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from backends import DATABASES
from evaluation_rows import evaluation_row
from known_runs import write_known_runs
from sqlalchemy import select, text

from agentrl.core.errors import StoreError
from agentrl.db.admin import migrate
from agentrl.db.audit.accounting import VIEWS
from agentrl.db.audit.reporting_views import READING
from agentrl.db.models.evaluations import Evaluation
from agentrl.db.questions import answer_question
from agentrl.db.store import Store, open_store


def test_an_upgrade_twice_changes_nothing(store: Store) -> None:
    assert migrate.upgrade(store) == migrate.upgrade(store) == migrate.head()
    migrate.require_current(store)


def test_the_models_are_what_the_migrations_make(store: Store) -> None:
    migrate.check(store)


def test_steps_recorded_before_the_column_trained_do_not_say_whether_they_are_in_the_loss(
    unmigrated: Store,
) -> None:
    migrate.upgrade(unmigrated)
    write_known_runs(unmigrated)
    learned = answer_question(unmigrated, "learned-tokens").rows
    with unmigrated.engine.begin() as connection:
        command.downgrade(migrate._config(connection), "0021")
    with pytest.raises(StoreError, match="has schema 0021"):
        migrate.require_current(unmigrated)
    migrate.ensure(unmigrated)
    migrate.check(unmigrated)
    with unmigrated.read() as session:
        assert set(session.scalars(text("SELECT trained FROM steps"))) == {None}
    assert answer_question(unmigrated, "learned-tokens").rows == learned
    assert answer_question(unmigrated, "untraceable-tokens").rows == []


def test_evaluations_recorded_before_failed_episodes_were_left_out_of_planned_are_complete(
    unmigrated: Store,
) -> None:
    """An interrupted one stays incomplete: fewer failed than are missing."""
    migrate.upgrade(unmigrated)
    old = {"planned": 4, "created_at": 0.0}
    with unmigrated.write() as session:
        for name, episodes, failed in (("failed", 3, 1), ("interrupted", 2, 1), ("lost", 0, 4)):
            session.add(evaluation_row(name, **old, episodes=episodes, metrics={"failed": failed}))
        session.add(evaluation_row("unknown", **old, episodes=3))
    with unmigrated.engine.begin() as connection:
        command.downgrade(migrate._config(connection), "0025")
    migrate.ensure(unmigrated)
    with unmigrated.read() as session:
        rows = {row.evaluation_id: row.planned for row in session.scalars(select(Evaluation))}
    assert rows == {"failed": 3, "interrupted": 4, "lost": 4, "unknown": 4}


def test_every_view_can_be_asked(store: Store) -> None:
    with store.read() as session:
        for view in (*VIEWS, *READING):
            assert session.execute(text(f"SELECT * FROM {view}")).all() == []  # noqa: S608


@pytest.fixture(params=DATABASES)
def unmigrated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A new database without tables."""
    on_disk = f"sqlite:///{tmp_path / 'new.db'}"
    url = on_disk if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with closing(open_store(url)) as opened:
        yield opened


@pytest.fixture
def newer(store: Store) -> Iterator[Store]:
    """At a schema of which this code knows nothing; the database is used again after it."""
    with store.write() as session:
        current = session.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    yield store
    with store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": current})


def test_a_newer_schema_is_refused_and_left_alone(newer: Store) -> None:
    for ask in (migrate.upgrade, migrate.ensure, migrate.require_current):
        with pytest.raises(StoreError, match="9999 is newer than this version"):
            ask(newer)


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
