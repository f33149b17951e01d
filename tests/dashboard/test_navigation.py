from pathlib import Path

import pytest
from run_history import begun
from streamlit.testing.v1 import AppTest

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.run import Run as RunSection
from agentrl.core.config.sections.tasks import Task
from agentrl.dashboard.links import address
from agentrl.dashboard.navigation import PAGES
from agentrl.db.store import Store


def shown(store: Store, chosen: str = "run", **parameters: str) -> AppTest:
    """The whole dashboard, opened at an address."""

    def script(url: str, name: str) -> None:
        from agentrl.dashboard.navigation import show
        from agentrl.db.admin.readonly import open_history

        show(open_history(url), name, f"agentrl up {name}.toml")

    app = AppTest.from_function(script, args=(str(store.engine.url), chosen), default_timeout=100)
    for name, value in parameters.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    return app


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


def test_a_store_without_runs_says_how_to_start_one(url: str) -> None:
    store, _ = begun(url)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM checkpoints")
        connection.exec_driver_sql("DELETE FROM runs")
    app = shown(store)
    assert (app.title[0].value, app.code[0].value) == ("run", "agentrl up run.toml")
    assert app.info[0].value.startswith("This run has not started yet.")
    store.close()


def test_a_configured_run_that_has_not_started_is_told_of_beside_the_others(two: Store) -> None:
    app = shown(two, "third")
    assert app.title[0].value == "second"
    told = "Run third has not started yet. Start it with: `agentrl up third.toml`"
    assert app.sidebar.info[0].value == told
    assert not shown(two, "first").sidebar.info
    two.close()


@pytest.fixture
def two(url: str) -> Store:
    """A store with the runs first and second."""
    begun(url, "first")[0].close()
    return begun(url, "second")[0]


def test_the_configured_run_is_shown_first_in_the_address_and_with_our_style_once(
    two: Store,
) -> None:
    app = shown(two, "first")
    assert app.title[0].value == "first"
    assert "first" in app.query_params["run"]
    bodies = [each.proto.body for each in app.get("html")]
    assert sum("<style>" in body for body in bodies) == 1
    assert any('class="rows"' in body for body in bodies)
    two.close()


def test_the_address_chooses_the_run_until_the_sidebar_does_and_wins_where_it_changes(
    two: Store,
) -> None:
    app = shown(two, "first", run="second")
    assert app.title[0].value == "second"
    app.query_params["run"] = "first"
    app.run()
    assert app.title[0].value == "first"
    app.sidebar.selectbox[0].select("second").run()
    assert app.title[0].value == "second"
    assert "second" in app.query_params["run"]
    two.close()


def test_a_run_of_the_address_that_is_not_there_is_said_until_one_is_chosen(two: Store) -> None:
    app = shown(two, "first", run="third")
    assert app.error[0].value.startswith("The database has no run with the name")
    assert not app.title
    app.run()
    assert app.error
    app.sidebar.selectbox[0].select("second").run()
    assert (app.title[0].value, list(app.error)) == ("second", [])
    app.run()
    assert app.title[0].value == app.sidebar.selectbox[0].value == "second"
    app.sidebar.selectbox[0].select("first").run()
    assert app.title[0].value == "first"
    app.sidebar.selectbox[0].select("second").run()
    assert "second" in app.query_params["run"]
    assert shown(two, "third").title[0].value == "second"
    two.close()


def test_addresses_name_a_page_and_quote_their_parameters() -> None:
    assert address("Episodes", run="a b", episode="x/1") == "/episodes?run=a+b&episode=x%2F1"


def test_the_first_page_is_at_the_root() -> None:
    assert address(PAGES[0].name, run="a") == "/?run=a"


def test_every_page_has_an_address_of_its_own() -> None:
    assert len({page.name.lower() for page in PAGES}) == len(PAGES)


def test_a_store_that_is_not_there_yet_is_a_run_that_has_not_started(tmp_path: Path) -> None:
    config = Config(tasks={"kg": Task()}, run=RunSection(home=str(tmp_path / "none")))
    path = tmp_path / "config.toml"
    path.write_text(config_loading.to_toml(config))

    def script(config: str) -> None:
        from agentrl.dashboard.script.app import main

        main([config])

    app = AppTest.from_function(script, args=(str(path),), default_timeout=100)
    app.run()
    assert not app.exception
    assert not app.error
    assert app.info[0].value.startswith("This run has not started yet.")
    assert app.code[0].value == f"agentrl up {path}"
    (tmp_path / "none").mkdir()
    begun(f"sqlite:///{tmp_path / 'none' / 'store.db'}", "run")[0].close()
    app.run()
    assert not app.exception
    assert "**not started**" in app.markdown[0].value  # it has a row, but no process
