"""A run whose episodes a model judges, while its endpoint fails and its worker is killed."""

import os
import signal
import threading
from contextlib import closing
from pathlib import Path

import pytest
from external_run import assert_key_is_kept_nowhere, write_external_run
from judge_policies import scored
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
        return scored(len(str(body)) % 5 / 4)


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_each_trained_episode_has_the_score_of_its_judge_though_a_worker_was_killed(
    tmp_path: Path,
) -> None:
    log, home, script = tmp_path / "log", tmp_path / "home", Endpoint()
    bounds = {"dispatch": "max_staleness = 0", "worker": "beat_s = 0.5\nlease_s = 4.0"}
    with serve_endpoint(script) as there:
        path = write_external_run(tmp_path, "judged", "critic", there.url, external=JUDGE, **bounds)
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
                "SELECT judge, judge_score, judge_reply, e.reward, e.score, e.fence"
                " FROM episodes e JOIN trajectories USING (episode_id, fence)"
                " WHERE e.state = 'finished'"
            )
        ).all()
    assert len(judged) >= 32
    for judge, score, reply, reward, solved, _ in judged:
        assert (judge, reward) == ("big", solved + 0.5 * score)
        assert reply.endswith(f"Score: {score}")
    assert any(row.fence > 1 for row in judged)
    logs = [each for each in home.rglob("*.log") if "worker" in each.name]
    assert any("Episode continues at its judge" in each.read_text() for each in logs)
    assert_key_is_kept_nowhere(tmp_path)
