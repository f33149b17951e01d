"""The views of evaluations, of episodes as an evaluator writes them."""

from typing import Any

import pytest
from run_history import begun, evaluation, trained
from sqlalchemy import text

from agentrl.core.types import Status
from agentrl.db.models.evaluations import EvaluationEpisode
from agentrl.db.questions import answer_question
from agentrl.db.store import Store


def episode(evaluation_id: str, item: str, repeat: int, won: int) -> EvaluationEpisode:
    counts = dict.fromkeys(("turns", "tokens", "prompt_tokens", "sampled_tokens"), 1)
    scores: dict[str, Any] = {"status": Status.COMPLETED, "reward": won, "score": won}
    times = dict.fromkeys(("seconds", "machine_s", "ended_at"), 1.0)
    return EvaluationEpisode(
        evaluation_id=evaluation_id, item_id=item, repeat=repeat, **scores, **counts, **times
    )


def ask(store: Store, query: str) -> list[tuple[Any, ...]]:
    with store.read() as session:
        return [tuple(row) for row in session.execute(text(query))]


def test_success_is_the_mean_over_items_whatever_their_repeats(store: Store) -> None:
    with store.write() as session:
        session.add(evaluation("run", 0))
        session.flush()
        session.add_all(episode("e0", "a", repeat, 1) for repeat in range(4))
        session.add_all(episode("e0", item, 0, 0) for item in "bc")
    [(episodes, *means)] = ask(
        store, "SELECT episodes, success, score, reward FROM evaluation_results"
    )
    assert episodes == 6
    assert [float(mean) for mean in means] == pytest.approx([1 / 3] * 3)


def test_evaluations_of_checkpoints_that_were_rolled_back_are_left_out(store: Store) -> None:
    own, run_id = begun(store.engine.url.render_as_string(hide_password=False))
    own.close()
    trained(store, run_id, 3)
    with store.write() as session:
        session.add_all(evaluation(run_id, version) for version in (1, 2, 3))
        session.add(evaluation(run_id, None, checkpoint_id="a directory"))
        session.flush()
        session.add_all(episode(f"e{version}", "a", 0, 1) for version in (1, 2, 3, None))
        for change in (  # version 2 was deleted after its update had been rolled back
            "UPDATE checkpoints SET state = 'deleted' WHERE version = 2",
            "UPDATE updates SET state = 'rolled_back' WHERE version = 2",
            "UPDATE checkpoints SET state = 'rolled_back' WHERE version = 3",
        ):
            session.execute(text(change))
    for view in ("evaluation_results", "evaluation_items"):
        found = ask(store, f"SELECT evaluation_id FROM {view} ORDER BY 1")  # noqa: S608
        assert found == [("e1",), ("eNone",)], view
    answer = answer_question(store, "evaluations")
    versions = [row[answer.columns.index("version")] for row in answer.rows]
    assert sorted(versions, key=str) == [1, None]
