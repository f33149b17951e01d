"""The page *Checkpoints* on empty, running, forked and finished runs."""

from pathlib import Path

import pytest
from history import begun, ended, trained
from streamlit.testing.v1 import AppTest

from dashboard.looks.checkpoints import EVALUATIONS, evaluation_chart, look, serving_chart
from db.models import Evaluation
from db.readonly import open_history
from db.store import Store, now


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


def shown(store: Store, run_id: str, **parameters: str) -> AppTest:
    def script(url: str, run_id: str) -> None:
        from dashboard.pages.checkpoints import page
        from db.readonly import open_history

        page(open_history(url), run_id)

    app = AppTest.from_function(script, args=(str(store.engine.url), run_id), default_timeout=20)
    for name, value in parameters.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    return app


def html(app: AppTest) -> str:
    return " ".join(each.proto.body for each in app.get("html"))


def test_a_run_that_has_just_begun_has_its_first_checkpoint_alone(url: str) -> None:
    store, run_id = begun(url)
    app = shown(store, run_id)
    assert app.code[0].value == "v0  stands · files of 1 of 1  ◀ newest"
    assert [each.value for each in app.info] == [
        "Nothing is served now.",
        "No evaluation yet. Measure a checkpoint with `agentrl eval CONFIG`.",
    ]
    store.close()


def test_what_is_served_now_is_said_and_drawn(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 3)
    app = shown(store, run_id, run="run")
    said = [each.value for each in app.markdown]
    assert any(each.startswith("**policy** (local) serves **v0** as *lagged(4)*") for each in said)
    values = serving_chart(look(open_history(url), run_id).servings)["data"]["values"]
    assert {each["who"] for each in values} == {"policy · current", "policy · lagged(4)"}
    assert "policy (current)" in html(app)
    ended(store, run_id)
    assert "Nothing is served now." in [each.value for each in shown(store, run_id).info]
    store.close()


def test_a_checkpoint_leads_to_its_parent_its_update_and_its_episodes(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 3)
    with store.engine.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE checkpoints SET parent_id = '{run_id}-v000001' WHERE version = 2"  # noqa: S608
        )
    app = shown(store, run_id, run="run", checkpoint=f"{run_id}-v000002")
    assert app.subheader[0].value == "Version 2"
    page = html(app)
    assert f"/checkpoints?run=run&amp;checkpoint={run_id}-v000001" in page
    assert f"/episodes?run=run&amp;checkpoint={run_id}-v000002" in page
    assert "/episodes?run=run&amp;learned_at=2" in page
    assert "Its update is **committed**: 2 groups, 8 episodes, 80 loss tokens." in [
        each.value for each in app.markdown
    ]
    assert "grad_norm" in page
    first = shown(store, run_id, run="run", checkpoint=f"{run_id}-v000000")
    assert "learned_at" not in html(first)
    store.close()


def test_a_checkpoint_of_nobody_is_an_error_above_the_others(url: str) -> None:
    store, run_id = begun(url)
    app = shown(store, run_id, run="run", checkpoint="none")
    assert app.error[0].value == "Run run has no checkpoint none."
    assert app.code
    store.close()


def test_measurements_are_drawn_with_their_intervals(url: str) -> None:
    store, run_id = begun(url)
    with store.write() as session:
        for version in (0, None):
            session.add(
                Evaluation(
                    evaluation_id=f"e{version}",
                    run_id=run_id,
                    checkpoint_id=f"{run_id}-v000000",
                    version=version,
                    task="kg",
                    split="test",
                    temperature=0.0,
                    items=10,
                    episodes=10,
                    success=0.5,
                    low=0.24,
                    high=0.76,
                    metrics={},
                    created_at=now(),
                )
            )
    page = html(shown(store, run_id))
    assert "24.0% – 76.0%" in page
    measured = look(open_history(url), run_id).measured
    assert len(measured) == 2 <= EVALUATIONS
    assert [each["version"] for each in evaluation_chart(measured)["data"]["values"]] == [0]
    store.close()
