"""A run whose episodes a model judges, while its endpoint fails and its worker is killed."""

import os
import signal
import threading
from contextlib import closing
from pathlib import Path

import pytest
from external_run import assert_key_is_kept_nowhere, write_external_run
from judge_policies import scored, scored_turns
from openai_endpoint import KEY, Answer, failure, serve_endpoint
from running import agentrl, eventually
from sqlalchemy import text

from agentrl.core.types import RunState
from agentrl.db.queries import progress
from agentrl.db.store import open_store
from agentrl.db.transitions import runs

JUDGE = """
[tasks.dbbench.judge]
policy = "critic"
weight = 0.5
scores = "{scores}"
"""


def worker_of(home: Path) -> int:
    """Return the process id of the only worker."""
    with closing(open_store(f"sqlite:///{home / 'store.db'}")) as store, store.read() as session:
        return session.execute(text("SELECT pid FROM workers WHERE ended_at IS NULL")).scalar_one()


class Endpoint:
    """Answers 429 and 500 first; holds its eighth answer back until `release`."""

    def __init__(self) -> None:
        self.asked, self.held, self.release = 0, threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, object]) -> Answer:
        with self._lock:
            self.asked += 1
            number = self.asked
        if number <= 2:
            return failure((429, 500)[number - 1], KEY)
        if number == 8:
            self.held.set()
            self.release.wait(120)
        size, turns = len(str(body)), str(body).count("===== assistant, turn ")
        if turns:
            return scored_turns(*((size + turn) % 5 / 4 for turn in range(turns)))
        return scored(size % 5 / 4)


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("scores", ["episode", "turns"])
def test_each_trained_episode_has_the_scores_of_its_judge_though_a_worker_was_killed(
    tmp_path: Path, scores: str
) -> None:
    log, home, script = tmp_path / "log", tmp_path / "home", Endpoint()
    judge = JUDGE.format(scores=scores)
    bounds = {"dispatch": "max_staleness = 0", "worker": "beat_s = 0.5\nlease_s = 4.0"}
    with serve_endpoint(script) as there:
        path = write_external_run(tmp_path, "judged", "critic", there.url, external=judge, **bounds)
        with agentrl("up", str(path), environment={"BIG_KEY": KEY}, output=log) as process:
            eventually(script.held.is_set, within_s=300, text=log.read_text)
            os.kill(worker_of(home), signal.SIGKILL)
            script.release.set()
            eventually(lambda: process.poll() is not None, within_s=600, text=log.read_text)
            assert process.returncode == 0, log.read_text()
    with closing(open_store(f"sqlite:///{home / 'store.db'}")) as store, store.read() as session:
        run = runs.require_run(session, "judged")
        assert (run.state, run.version) == (RunState.COMPLETED, 2)
        assert progress.disagreements(session, run.run_id) == []
        judged = session.execute(
            text(
                "SELECT judge, t.judge_score, judge_reply, e.reward, e.score, e.fence, e.turns,"
                " SUM(s.judge_score) AS sum_of_turns, MAX(s.judge_score) AS best_turn"
                " FROM episodes e JOIN trajectories t USING (episode_id, fence)"
                " JOIN steps s USING (episode_id, fence)"
                " WHERE e.state = 'finished' GROUP BY e.episode_id, e.fence"
            )
        ).all()
    assert len(judged) >= 32
    for row in judged:
        given = row.judge_score * (1 if scores == "episode" else row.turns)
        assert (row.judge, row.reward) == ("big", pytest.approx(row.score + 0.5 * given))
        if scores == "turns":
            assert row.sum_of_turns == pytest.approx(given)
            assert f"Score: {row.best_turn}" in row.judge_reply
        else:
            assert row.judge_reply.endswith(f"Score: {row.judge_score}")
            assert row.sum_of_turns is None
    assert any(row.fence > 1 for row in judged)
    logs = [each for each in home.rglob("*.log") if "worker" in each.name]
    assert any("Episode continues at its judge" in each.read_text() for each in logs)
    assert_key_is_kept_nowhere(tmp_path)
