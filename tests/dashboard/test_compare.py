import uuid

import pytest
from run_history import begun, ended, evaluation, trained

from agentrl.core.types import Status
from agentrl.dashboard.pages.compare import curve_rows, paired_row, side_row
from agentrl.dashboard.viewmodels.compare import pair_scores, pool_points, read_side
from agentrl.db.admin.readonly import open_history
from agentrl.db.models.evaluations import EvaluationEpisode
from agentrl.db.store import Store, now


def evaluated(store: Store, run_id: str, version: int, scores: dict[str, float]) -> None:
    """An evaluation of a version: an episode an item."""
    evaluation_id = uuid.uuid4().hex
    with store.write() as session:
        session.add(evaluation(run_id, version, evaluation_id=evaluation_id, settings="{}"))
        session.flush()
        session.add_all(
            EvaluationEpisode(
                evaluation_id=evaluation_id, item_id=item, repeat=0, status=Status.COMPLETED,
                reward=score, score=score, turns=1, tokens=9, prompt_tokens=5, sampled_tokens=4,
                seconds=1.0, machine_s=1.0, ended_at=now(),
            )
            for item, score in scores.items()
        )  # fmt: skip


@pytest.fixture
def two(url: str) -> tuple[Store, dict[str, str]]:
    """Runs first, with four updates, and second, with two and an end."""
    store, first = begun(url, "first")
    trained(store, first, 4)
    store.close()
    store, second = begun(url, "second")
    trained(store, second, 2)
    ended(store, second)
    return store, {"first": first, "second": second}


def test_a_run_stands_as_one_row_with_its_success_of_late(
    two: tuple[Store, dict[str, str]],
) -> None:
    store, known = two
    rows = [side_row(name, read_side(store, run_id)) for name, run_id in known.items()]
    assert [row["version"] for row in rows] == [4, 2]
    assert [row["state"] for row in rows] == ["running", "completed"]
    assert [row["trained tokens"] for row in rows] == [320, 160]
    assert rows[0]["dbbench"].startswith("62.5% (")
    store.close()


def test_evaluations_of_both_are_compared_item_by_item(
    two: tuple[Store, dict[str, str]],
) -> None:
    store, known = two
    evaluated(store, known["first"], 1, dict.fromkeys("abcd", 1.0))  # an older version
    evaluated(store, known["first"], 4, {"a": 0.0, "b": 0.0, "c": 1.0, "d": 0.0, "e": 1.0})
    evaluated(store, known["second"], 2, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.5})
    looking = open_history(str(store.engine.url))
    (found,) = pair_scores(read_side(looking, known["first"]), read_side(looking, known["second"]))
    assert (found.first, found.second, found.versions) == (0.25, 0.75, (4, 2))
    one = found.difference  # 1, 1, 0, 0: mean 0.5 ± 3.182 · 0.5774 / 2
    assert (one.mean, one.n) == (0.5, 4)
    assert (one.low, one.high) == pytest.approx((0.5 - 0.9186, 0.5 + 0.9186), abs=1e-3)
    shown = paired_row("first", "second", found)
    assert shown["difference"] == "+50.0%"
    assert shown["runs"] == "first v4 → second v2"
    store.close()


def test_evaluations_of_other_items_are_not_compared(two: tuple[Store, dict[str, str]]) -> None:
    store, known = two
    evaluated(store, known["first"], 4, {"a": 0.0})
    evaluated(store, known["second"], 2, {"b": 1.0})
    looking = open_history(str(store.engine.url))
    assert (
        pair_scores(read_side(looking, known["first"]), read_side(looking, known["second"])) == []
    )
    store.close()


def test_all_tasks_together_are_their_episodes_together(two: tuple[Store, dict[str, str]]) -> None:
    store, known = two
    side = read_side(open_history(str(store.engine.url)), known["first"])
    together = pool_points(side.curve, None)
    assert [(point.episodes, point.solved) for point in together] == [
        (8, 2),
        (16, 6),
        (24, 12),
        (32, 20),
    ]
    variances = [3 / 16, 15 / 64, 1 / 4, 15 / 64]
    assert [point.variance for point in together] == pytest.approx(variances)
    rows = curve_rows({"first": side}, "dbbench")
    assert [row["tokens"] for row in rows] == [80, 160, 240, 320]
    assert [row["success"] for row in rows] == [0.25, 0.375, 0.5, 0.625]
    store.close()
