"""The page *Checkpoints* on empty, running, forked and finished runs."""

from dataclasses import replace
from typing import Any

from history import begun, ended, evaluation, trained

from dashboard.links import Here
from dashboard.looks.checkpoints import EVALUATIONS, evaluation_chart, look, serving_chart
from db.readonly import open_history


def test_a_run_that_has_just_begun_has_its_first_checkpoint_alone(
    url: str, show: Any, html: Any
) -> None:
    store, run_id = begun(url)
    app = show("checkpoints", store, run_id)
    assert ">v0  stands · files of 1 of 1  ◀ newest<" in html(app)
    assert [each.value for each in app.info] == [
        "Nothing is served now.",
        "No evaluation yet. Measure a checkpoint with `agentrl eval CONFIG`.",
    ]
    store.close()


def test_what_is_served_now_is_said_and_drawn(url: str, show: Any, html: Any) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 3)
    app = show("checkpoints", store, run_id, run="run")
    said = [each.value for each in app.markdown]
    assert any(each.startswith("**policy** (local) serves **v0** as *lagged(4)*") for each in said)
    served = look(open_history(url), run_id).servings
    values = serving_chart(served, Here(run_id, "run"))["data"]["values"]
    assert {each["who"] for each in values} == {"policy · current", "policy · lagged(4)"}
    pinned = replace(served[0], track=f"pinned({run_id}-v000002)")
    (one,) = serving_chart([pinned], Here(run_id, "run"))["data"]["values"]
    assert one["who"] == "policy · pinned(v000002)"
    assert "policy (current)" in html(app)
    ended(store, run_id)
    assert "Nothing is served now." in [
        each.value for each in show("checkpoints", store, run_id).info
    ]
    store.close()


def test_a_checkpoint_leads_to_its_parent_its_update_and_its_episodes(
    url: str, show: Any, html: Any
) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 3)
    with store.engine.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE checkpoints SET parent_id = '{run_id}-v000001' WHERE version = 2"  # noqa: S608
        )
    app = show("checkpoints", store, run_id, run="run", checkpoint=f"{run_id}-v000002")
    assert app.subheader[0].value == "Version 2"
    page = html(app)
    assert f"/checkpoints?run=run&amp;checkpoint={run_id}-v000001" in page
    assert f"/episodes?run=run&amp;checkpoint={run_id}-v000002" in page
    assert "/episodes?run=run&amp;learned_at=2" in page
    assert "Its update is **committed**: 2 groups, 8 episodes, 80 loss tokens." in [
        each.value for each in app.markdown
    ]
    assert "grad_norm" in page
    first = show("checkpoints", store, run_id, run="run", checkpoint=f"{run_id}-v000000")
    assert "learned_at" not in html(first)
    store.close()


def test_a_checkpoint_of_nobody_is_an_error_above_the_others(
    url: str, show: Any, html: Any
) -> None:
    store, run_id = begun(url)
    app = show("checkpoints", store, run_id, run="run", checkpoint="none")
    assert app.error[0].value == "Run run has no checkpoint none."
    assert "◀ newest" in html(app)
    store.close()


def test_measurements_are_drawn_with_their_intervals(url: str, show: Any, html: Any) -> None:
    store, run_id = begun(url)
    with store.write() as session:
        for version in (0, None):
            session.add(evaluation(run_id, version))
    page = html(show("checkpoints", store, run_id))
    assert "24.0% – 76.0%" in page
    measured = look(open_history(url), run_id).measured
    assert len(measured) == 2 <= EVALUATIONS
    drawn = evaluation_chart(measured)
    assert [each["version"] for each in drawn["data"]["values"]] == [0]
    assert drawn["encoding"]["xOffset"]["field"] == "task"
    assert drawn["encoding"]["x"]["type"] == "ordinal"  # which an offset needs
    store.close()
