"""What the page *Checkpoints* shows of who serves what and how each version was measured."""

from dataclasses import replace
from typing import Any

from run_history import begun, evaluation

from agentrl.dashboard.links import Here
from agentrl.dashboard.viewmodels.checkpoints import (
    EVALUATIONS,
    evaluation_chart,
    evaluation_rows,
    read_checkpoint,
    read_registry,
    rows,
    serving_chart,
)


def test_what_is_served_is_drawn_by_server_and_track(runs: Any) -> None:
    registry, here = read_registry(runs.store, runs.going), Here(runs.going, "going")
    values = serving_chart(registry.servings, here)["data"]["values"]
    assert {each["who"] for each in values} == {"policy · current", "policy · lagged(4)"}
    pinned = replace(registry.servings[0], track=f"pinned({runs.going}-v000002)")
    (value,) = serving_chart([pinned], here)["data"]["values"]
    assert value["who"] == "policy · pinned(v000002)"
    served = [row["served by"] for row in rows(registry.newest, registry, here)]
    assert served[:3] == ["–", "–", "–"]
    assert "policy (current)" in str(served[3])
    assert not any(each.live for each in read_registry(runs.store, runs.over).servings)


def test_a_checkpoint_knows_its_update_and_the_first_has_none(runs: Any) -> None:
    found = read_checkpoint(runs.store, runs.going, f"{runs.going}-v000002")
    assert found is not None
    assert (found.update_state, found.groups, found.episodes, found.loss_tokens) == (
        "committed",
        2,
        8,
        80,
    )
    assert "grad_norm" in found.metrics
    first = read_checkpoint(runs.store, runs.going, f"{runs.going}-v000000")
    assert first is not None
    assert first.update_state == ""
    assert read_checkpoint(runs.store, runs.over, f"{runs.going}-v000002") is None


def test_measurements_are_drawn_with_their_intervals(url: str) -> None:
    store, run_id = begun(url)
    with store.write() as session:
        for version in (0, None):
            session.add(evaluation(run_id, version))
    measured = read_registry(store, run_id).measured
    assert len(measured) == 2 <= EVALUATIONS
    assert {row["95 %"] for row in evaluation_rows(measured)} == {"24.0% – 76.0%"}
    drawn = evaluation_chart(measured)
    assert [each["version"] for each in drawn["data"]["values"]] == [0]
    assert drawn["encoding"]["xOffset"]["field"] == "task"
    assert drawn["encoding"]["x"]["type"] == "ordinal"  # which an offset needs
    store.close()


def test_an_evaluation_under_way_is_listed_with_what_is_planned_and_not_drawn(url: str) -> None:
    store, run_id = begun(url)
    with store.write() as session:
        session.add(evaluation(run_id, 0, planned=10))
        session.add(evaluation(run_id, 1, planned=40))
    measured = read_registry(store, run_id).measured
    listed = {row["version"]: row["episodes"] for row in evaluation_rows(measured)}
    assert listed == {"v0": "10", "v1": "10 of 40"}
    drawn = evaluation_chart(measured)["data"]["values"]
    assert [each["version"] for each in drawn] == [0]
    store.close()
