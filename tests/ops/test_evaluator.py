"""The evaluator beside a training: what it measures, what it passes over, how it ends."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from running import ROOT, agentrl, eventually, processes_of
from sqlalchemy import func, select

from core import loading
from core.errors import CheckpointError, ConfigError, StoreError
from core.types import RunState
from db import progress, runs
from db.models import Evaluation, EvaluationEpisode, PolicyServer
from db.store import open_store
from ops import configs, evaluator
from ops.evaluator import evaluate_run, follow
from ops.runs import begin
from ops.supervise import children
from workers.episode import Stopped

UPDATES = 14
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
def test_what_is_due_is_measured_until_the_run_is_over(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "LOOK_S", 0.05)
    monkeypatch.setattr(
        evaluator, "stand_back", lambda _nice: None
    )  # it is for a process of its own
    config = loading.load(file)
    run_id = begin(config)
    thread = threading.Thread(target=evaluate_run, args=(config, threading.Event()))
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

    follow(lambda: next(looks), over, measure, threading.Event())
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
    assert follows([["v0"], ["v0"]], {"v0": Stopped("told")}) == ["v0"]


def test_only_a_file_that_asks_for_it_has_an_evaluator(file: Path) -> None:
    asked, default = loading.load(file), loading.load(file, {"AGENTRL__EVAL__EVERY": "0"})
    assert "evaluator" in [child.name for child in children(asked, file)]
    assert "evaluator" not in [child.name for child in children(default, file)]
    with pytest.raises(ConfigError, match="nothing is due"):
        evaluate_run(default, threading.Event())


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [("TASKS", '["dbbnch"]', "did you mean dbbench"), ("SPLITS", '["tst"]', "no split tst")],
)
def test_a_file_that_asks_for_what_is_not_there_is_refused(
    file: Path, key: str, value: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        configs.check(loading.load(file, {f"AGENTRL__EVAL__{key}": value}))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_training_goes_on_beside_an_evaluator_that_is_killed(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    environment = {
        "AGENTRL__RUN__HOME": str(home),
        "AGENTRL__RUN__NAME": "embedded",
        "AGENTRL__RUN__STOP_UPDATES": str(UPDATES),
        "AGENTRL__MODEL__PATH": str(ROOT / "models" / "tiny"),
        "AGENTRL__DISPATCH__GROUPS_PER_UPDATE": "4",
        "AGENTRL__EVAL__EVERY": "2",
        "AGENTRL__EVAL__ITEMS": "6",
        "AGENTRL__EVAL__NICE": "1",  # else it may wait for ever on a busy machine
    }
    config = str(ROOT / "configs" / "quickstart.toml")

    def count() -> int:
        if not (home / "processes.json").exists():  # written once the run has begun
            return 0
        with closing(open_store(f"sqlite:///{home / 'store.db'}")) as store, store.read() as s:
            return s.scalar(select(func.count()).select_from(EvaluationEpisode)) or 0

    def logs() -> str:
        tails = [path.read_text()[-800:] for path in sorted((home / "logs").glob("*.log"))]
        return "\n".join([log.read_text(), *tails])

    def pid() -> int:
        found = json.loads((home / "processes.json").read_text())["processes"]["evaluator"]["pid"]
        return int(found or 0)

    with agentrl("up", config, environment=environment, output=log) as process:
        eventually(lambda: count() >= 12, within_s=300, text=logs)  # version 0 is whole
        killed = pid()
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, killed) == ours + 1
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: pid() not in (0, killed), within_s=60, text=logs)
        assert process.wait(500) == 0, logs()
    assert processes_of(home) == []
    last = ("eval", config, "--checkpoints", "latest", "--items", "6")
    with agentrl(*last, environment=environment, output=log) as process:
        assert process.wait(240) == 0, logs()
    with closing(open_store(f"sqlite:///{home / 'store.db'}")) as store, store.read() as session:
        run = runs.require_run(session, "embedded")
        assert (run.state, run.version) == (RunState.COMPLETED, UPDATES)
        assert progress.disagreements(session, run.run_id) == []
        found = session.scalars(select(Evaluation)).all()
        whole = {(row.version, row.task) for row in found if row.episodes == row.planned == 6}
        assert whole >= {(v, task) for v in (0, UPDATES) for task in ("dbbench", "alfworld")}
        assert all(row.version is not None and row.version % 2 == 0 for row in found)
        kept = Counter(session.scalars(select(EvaluationEpisode.evaluation_id)))
        assert all(kept[row.evaluation_id] <= row.planned for row in found)
