"""External models in whole: one is measured, one teaches; what it says is never learned."""

import json
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from external_run import assert_key_is_kept_nowhere, write_external_run
from openai_endpoint import KEY, failure, serve_endpoint
from run_transitions import World
from running import agentrl, eventually, processes_of
from sqlalchemy import select, text
from teacher_endpoint import teacher_script

from agentrl.broker.messages import EpisodeFinished, decode
from agentrl.core import config_loading
from agentrl.core.errors import ConfigError, ItemError
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import RunState, UpdateState
from agentrl.db.admin import migrate
from agentrl.db.models.episodes import StoredTrajectory
from agentrl.db.models.evaluations import EvaluationEpisode
from agentrl.db.models.processes import PolicyServer
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Update, UpdateGroup
from agentrl.db.queries import progress
from agentrl.db.registry import external_policies
from agentrl.db.registry.policy_servers import begin_serving, end_server, register_server
from agentrl.db.store import Store, open_store
from agentrl.db.transitions import runs
from agentrl.ops.configuration.configs import check
from agentrl.ops.evaluation.command import EvalRequest, evaluate
from agentrl.ops.processes.worker import pool_config
from agentrl.workers.policies.pool import PolicyPool

OPTIONS = {"style": "compact", "items": 40, "test_items": 8}
TAUGHT = """
strategy = "weighted"
[sampling.weights]
current = 0.7
"external(teacher)" = 0.3
"""


def write(tmp_path: Path, url: str, more: str = "") -> Path:
    return write_external_run(tmp_path, "taught", "teacher", url, sampling=TAUGHT, external=more)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIG_KEY", KEY)


def test_any_model_with_an_api_is_measured_on_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_endpoint(teacher_script(OPTIONS, "test")) as there:
        file = write(tmp_path, there.url, "prompt_price = 2.0\nanswer_price = 10.0")
        evaluate(
            file,
            EvalRequest(policies=("external(teacher)",), items=6, temperature=0.0),
            as_json=True,
        )
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["checkpoint_id"], row["version"]) == ("external(teacher)", None)
    assert (row["episodes"], row["success"], row["turns"]) == (6, 1.0, 2.0)
    assert {body["temperature"] for _, body in there.asked} == {0.0}
    with (
        closing(open_store(config_loading.load(file).store_url())) as store,
        store.read() as session,
    ):
        kept = session.scalars(select(EvaluationEpisode)).all()
    read = sum(each.prompt_tokens for each in kept)
    assert row["cost"] == pytest.approx(
        (2.0 * read + 10.0 * sum(each.sampled_tokens for each in kept)) / 1e6
    )


def test_an_evaluation_beyond_its_budget_ends_soon_and_says_what_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_endpoint(teacher_script(OPTIONS, "test")) as there:
        file = write(tmp_path, there.url, "max_requests = 4\nconcurrency = 1")
        with suppress(ItemError):  # if no episode came to its end
            evaluate(file, EvalRequest(policies=("external(teacher)",), items=6), as_json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert row["failed"] >= 4
    assert row["episodes"] + row["failed"] == 6
    assert len(there.asked) == 4


def test_a_target_that_is_no_external_server_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean teacher"):
        evaluate(
            write(tmp_path, "http://h/v1"),
            EvalRequest(policies=("external(teachr)",)),
            as_json=True,
        )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("http://h/v1", "h"), "not an http"),
        (('model = "big"', ""), "model is not set"),
        (
            ('engine = "external"', 'engine = "external"\ntracks = ["lagged(2)"]'),
            "cannot follow tracks",
        ),
        (('[[policy]]\nname = "policy"', ""), "no server follows the track current"),
    ],
)
def test_a_file_that_cannot_work_is_refused(
    tmp_path: Path, change: tuple[str, str], why: str
) -> None:
    path = write(tmp_path, "http://h/v1")
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ConfigError, match=why):
        check(config_loading.load(path))


def test_a_teacher_never_acts_alone(tmp_path: Path) -> None:
    """Else it would spend its budget on every turn that a server of ours takes to come up."""
    with closing(World.begin(fresh(tmp_path)).store) as store:
        run_id = one_run(store)
        with store.write() as session:
            server = PolicyServer(
                server_id="t", run_id=run_id, name="teacher", engine="external", url="http://t"
            )
            register_server(session, server, lease_s=3600.0)
            row = external_policies.require_checkpoint(session, run_id, "teacher")
            begin_serving(session, "t", "external(teacher)", row)
        config = config_loading.load(write(tmp_path, "http://h/v1"))
        with closing(PolicyPool.of_run(store, run_id, pool_config(config))) as pool:
            pool.refresh(60.0)
            assert {p.track for p in pool.live()} == {"current", "lagged(4)", "external(teacher)"}
            with store.write() as session:
                end_server(session, f"policy-{run_id}")
            pool.refresh(60.0)
            assert list(pool.live()) == []


def fresh(tmp_path: Path) -> Store:
    store = open_store(f"sqlite:///{tmp_path / 'pool.db'}")
    migrate.upgrade(store)
    return store


def one_run(store: Store) -> str:
    with store.read() as session:
        return session.scalars(select(Run.run_id)).one()


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_teacher_acts_in_a_run_and_nothing_of_it_is_learned(tmp_path: Path) -> None:
    log = tmp_path / "log"
    refused = iter([True, True])

    with serve_endpoint(teacher_script(OPTIONS, "train")) as there:
        script = there.script
        there.script = lambda body: failure(429, KEY) if next(refused, False) else script(body)
        file = write(tmp_path, there.url)
        with agentrl("up", str(file), environment={"BIG_KEY": KEY}, output=log) as process:
            eventually(lambda: process.poll() is not None, within_s=600, text=log.read_text)
            assert process.returncode == 0, log.read_text()
    home = tmp_path / "home"
    assert processes_of(home) == []
    with closing(open_store(f"sqlite:///{home / 'store.db'}")) as store:
        check_rows(store, len(there.asked))
        check_bodies(store)
    assert_key_is_kept_nowhere(tmp_path)


def check_rows(store: Store, asked: int) -> None:
    with store.read() as session:
        run = runs.require_run(session, "taught")
        assert (run.state, run.version) == (RunState.COMPLETED, 2)
        assert progress.disagreements(session, run.run_id) == []
        assert external_policies.spending(session, run.run_id, "teacher")[0] == asked > 4
        assert progress.staleness(session, run.run_id).get("lagged", 0.0) >= 0.0
        steps = session.execute(text("SELECT track, count(*), min(version) FROM steps GROUP BY 1"))
        found = {track: (count, version) for track, count, version in steps}
    assert found["external(teacher)"][1] == external_policies.VERSION
    assert found["current"][0] > found["external(teacher)"][0] > 4


def check_bodies(store: Store) -> None:
    """What an update counts as learned is what the trained model sampled, and no more."""
    with store.read() as session:
        messages = [decode(body) for body in session.scalars(select(StoredTrajectory.body))]
        query = (
            select(UpdateGroup.episode_id, UpdateGroup.loss_tokens)
            .join(Update, Update.update_id == UpdateGroup.update_id)
            .where(Update.state == UpdateState.COMMITTED)
        )
        learned = {episode: count for episode, count in session.execute(query)}
    found = [each.trajectory for each in messages if isinstance(each, EpisodeFinished)]
    bodies = {body.episode_id: body for body in found}
    assert learned
    for episode_id, count in learned.items():
        body = bodies[episode_id]
        own = [step for step in body.steps if not _taught(body, step.policy_index)]
        assert count == sum(step.end - step.start for step in own) == int(body.mask().sum())
    assert any(_taught(body, index) for body in found for index in range(len(body.policies)))
    for body in found:
        for step in body.steps:
            if _taught(body, step.policy_index):
                assert not body.mask()[step.start : step.end].any()
                assert not body.behaviour()[step.start : step.end].any()
                assert np.array_equal(
                    body.sampled_by()[step.start : step.end],
                    np.full(step.end - step.start, step.policy_index),
                )


def _taught(body: Trajectory, index: int) -> bool:
    return body.policies[index].track == "external(teacher)"
