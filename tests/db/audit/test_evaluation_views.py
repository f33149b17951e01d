"""The views of evaluations, of episodes as an evaluator writes them."""

from typing import Any

import pytest
from run_history import evaluation
from sqlalchemy import text

from agentrl.core.types import Status
from agentrl.db.models.evaluations import EvaluationEpisode
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
