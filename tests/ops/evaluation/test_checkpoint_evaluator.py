"""The evaluator beside a training: what it measures, what it passes over, how it ends."""

import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from running import ROOT, added_niceness, agentrl, eventually
from sqlalchemy import func, select

from agentrl.core import config_loading
from agentrl.core.errors import CheckpointError, ConfigError, StoreError
from agentrl.core.types import RunState
from agentrl.db.models.evaluations import Evaluation, EvaluationEpisode
from agentrl.db.models.processes import PolicyServer
from agentrl.db.store import open_store
from agentrl.db.transitions import runs
from agentrl.ops.configuration import configs
from agentrl.ops.evaluation.checkpoint_evaluator import follow
from agentrl.ops.processes.evaluator import evaluate_run
from agentrl.ops.runs.begin import begin
from agentrl.ops.supervisor.children import children
from agentrl.workers.attempt_errors import EpisodeStopped

LOOK_S = 0.05
FILE = """
[run]
name = "watched"
home = "{home}"
[model]
path = "{tiny}"
[sampling]
max_step_tokens = 24
max_tokens = 256
[tasks.dbbench.options]
style = "compact"
items = 4
test_items = 4
[eval]
every = 2
items = 2
repeats = 2
temperature = 0.0
concurrency = 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(FILE.format(home=tmp_path / "home", tiny=ROOT / "models" / "tiny"))
    return path


@pytest.mark.timeout(400)
def test_what_is_due_is_measured_until_the_run_is_over(file: Path) -> None:
    config = config_loading.load(file)
    run_id = begin(config)
    thread = threading.Thread(target=evaluate_run, args=(config, threading.Event(), LOOK_S))
    with closing(open_store(config.store_url())) as store:

        def episodes() -> int:
            with store.read() as session:
                return session.scalar(select(func.count()).select_from(EvaluationEpisode)) or 0

        thread.start()
        eventually(lambda: episodes() == 4, within_s=200, text=lambda: str(episodes()))
        store.transact(lambda session: runs.move_run(session, run_id, RunState.STOPPED))
        thread.join(100)
        assert not thread.is_alive()
        with store.read() as session:
            [row] = session.scalars(select(Evaluation))
            assert (row.run_id, row.version, row.policy) == (run_id, 0, "watched@0")
            assert (row.temperature, row.episodes, row.planned) == (0.0, 4, 4)
            [held] = session.scalars(select(PolicyServer))
            assert held.ended_at is not None


def follows(due: Sequence[Sequence[str]], failures: dict[str, Exception]) -> list[str]:
    """What is measured where `due` changes at each look, and the run ends after the last."""
    measured, looks = [], iter(due)
    left = len(due)

    def over() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    def measure(name: str) -> None:
        measured.append(name)
        if name in failures:
            raise failures[name]

    follow(lambda: next(looks), over, measure, threading.Event(), look_s=LOOK_S)
    return measured


def test_the_newest_is_measured_first_and_nothing_twice() -> None:
    due = [["v0"], ["v6", "v4", "v2", "v0"], ["v6", "v4", "v2", "v0"], ["v8", "v2", "v0"]]
    assert follows(due, {}) == ["v0", "v6", "v4", "v8"]


def test_what_cannot_be_measured_is_passed_over() -> None:
    gone = {"v2": CheckpointError("deleted")}
    assert follows([["v2", "v0"], ["v2", "v0"]], gone) == ["v2", "v0"]


def test_a_store_that_is_away_ends_the_process_and_a_signal_the_loop() -> None:
    with pytest.raises(StoreError):
        follows([["v0"]], {"v0": StoreError("away")})
    assert follows([["v0"], ["v0"]], {"v0": EpisodeStopped("told")}) == ["v0"]


def test_only_a_file_that_asks_for_it_has_an_evaluator(file: Path) -> None:
    asked, default = (
        config_loading.load(file),
        config_loading.load(file, {"AGENTRL__EVAL__EVERY": "0"}),
    )
    assert "evaluator" in [child.name for child in children(asked, file)]
    assert "evaluator" not in [child.name for child in children(default, file)]
    with pytest.raises(ConfigError, match="there is nothing to evaluate"):
        evaluate_run(default, threading.Event())


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [("TASKS", '["dbbnch"]', "did you mean dbbench"), ("SPLITS", '["tst"]', "no split tst")],
)
def test_a_file_that_asks_for_what_is_not_there_is_refused(
    file: Path, key: str, value: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        configs.check(config_loading.load(file, {f"AGENTRL__EVAL__{key}": value}))


@pytest.mark.slow
def test_its_process_lets_everybody_else_compute_first(file: Path, tmp_path: Path) -> None:
    log, beside = tmp_path / "log", {"AGENTRL__EVAL__NICE": "3"}
    with agentrl(
        "evaluator", str(file), environment=beside, output=log, has_own_session=True
    ) as process:
        assert added_niceness(process, log) == 3
