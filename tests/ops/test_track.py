"""The real libraries, offline: what a run's rows say arrives once, whatever is killed."""

import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import history
import msgspec
import psutil
import pytest
import wandb_file
from mlflow.tracking import MlflowClient
from running import ROOT, eventually
from sqlalchemy import select
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from core import loading
from core.config import Config, Run, Task, Trackers
from core.errors import ConfigError
from core.types import RunState
from db import alarms, runs, told
from db.alarms import Reading
from db.models import Evaluation, Update
from db.store import Store
from db.told import Told
from ops.supervise import children
from ops.track import Follower, track
from ops.trackers.tracker import Figure, TrackerError, figure, make, without_passwords

NAMES = ("tensorboard", "mlflow", pytest.param("wandb", marks=pytest.mark.slow))
Rows = list[tuple[int, str, float]]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        tasks={"dbbench": Task()},
        run=Run(name="run", home=str(tmp_path)),
        trackers=Trackers(look_s=0.05),
    )


@pytest.fixture
def begun(config: Config) -> tuple[Store, str]:
    """Three updates, an alarm that was raised, an evaluation."""
    store, run_id = history.begun(config.store_url(), config=config)
    history.trained(store, run_id, 3)
    with store.write() as session:
        reading = Reading("dbbench", "entropy", 0.001, 0.01, raised=True)
        alarms.add(session, run_id, None, 2, [(reading, None)])
        figures = {"success": 0.25, "low": 0.05, "high": 0.7, "episodes": 4}
        session.add(history.evaluation(run_id, 3, task="dbbench", **figures))
    return store, run_id


def read(name: str, config: Config, run_id: str) -> Rows:
    """What a tracker holds, as its own library reads it, by version and name."""
    folder = config.home() / "trackers" / name
    if name == "tensorboard":
        found = EventAccumulator(str(folder / run_id), size_guidance={"scalars": 0})
        found.Reload()
        tags = found.Tags()["scalars"]
        return sorted((e.step, tag, e.value) for tag in tags for e in found.Scalars(tag))
    if name == "wandb":
        return sorted(wandb_file.figures(folder, run_id))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # as the tracker says to its own MLflow
        client = MlflowClient(folder.as_uri())
    [experiment] = [e for e in client.search_experiments() if e.name == "agentrl"]
    [run] = client.search_runs([experiment.experiment_id])
    return sorted(
        (each.step, key, each.value)
        for key in run.data.metrics
        for each in client.get_metric_history(run.info.run_id, key)
    )


def expected(store: Store, run_id: str) -> Rows:
    with store.read() as session:
        updates = session.scalars(select(Update).where(Update.run_id == run_id))
        found = [(u.version, name, value) for u in updates for name, value in u.metrics.items()]
    where = "eval/dbbench/test/T0"
    figures = {"success": 0.25, "low": 0.05, "high": 0.7}
    found += [(3, f"{where}/{name}", value) for name, value in figures.items()]
    return sorted([*found, (2, "alarm/dbbench/entropy", 1.0)])


def same(found: Rows, wanted: Rows) -> bool:
    return [row[:2] for row in found] == [row[:2] for row in wanted] and all(
        one[2] == pytest.approx(other[2], rel=1e-6)
        for one, other in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_row_arrives_once_though_the_follower_begins_anew(
    name: str, config: Config, begun: tuple[Store, str]
) -> None:
    store, run_id = begun
    stop = threading.Event()
    stop.set()  # one look, then the end
    for _ in range(2):
        Follower(config, make(name, config), name).follow(stop)
        assert same(read(name, config, run_id), expected(store, run_id))
    with store.write() as session:
        alarms.add(
            session, run_id, None, 3, [(Reading("", "skipped", 1.0, 0.0, raised=True), None)]
        )
    Follower(config, make(name, config), name).follow(stop)
    wanted = sorted([*expected(store, run_id), (3, "alarm/update/skipped", 1.0)])
    assert same(read(name, config, run_id), wanted)


@pytest.fixture
def told_by(config: Config, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Begins `agentrl track` with that tracker; what it says is in `log`."""
    path, begun = tmp_path / "run.toml", []

    def follow(name: str) -> subprocess.Popen[bytes]:
        section = msgspec.structs.replace(config.trackers, use=[name])
        path.write_text(loading.to_toml(msgspec.structs.replace(config, trackers=section)))
        command = [sys.executable, "-m", "cli.main", "track", str(path)]
        with (tmp_path / "log").open("ab") as output:
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        begun.append(process)
        return process

    yield follow
    for process in begun:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_follower_that_is_killed_leaves_neither_a_gap_nor_a_double(
    name: str,
    config: Config,
    begun: tuple[Store, str],
    told_by: Callable[[str], subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    store, run_id = begun
    folder, log = config.home() / "trackers" / name, tmp_path / "log"
    for pause_s in (0.0, 0.3, 1.0):
        process = told_by(name)
        eventually(lambda: any(folder.rglob("*")), within_s=60, text=log.read_text)
        time.sleep(pause_s)
        process.kill()
        process.wait()
    with store.write() as session:
        runs.move_run(session, run_id, RunState.STOPPED, "enough")
    assert told_by(name).wait(60) == 0, log.read_text()
    assert same(read(name, config, run_id), expected(store, run_id)), log.read_text()


@pytest.mark.slow
def test_figures_are_told_again_though_the_process_of_wandb_is_killed(
    config: Config,
    begun: tuple[Store, str],
    told_by: Callable[[str], subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    store, run_id = begun
    folder, log = config.home() / "trackers" / "wandb", tmp_path / "log"
    process = told_by("wandb")
    eventually(lambda: wandb_file.files(folder, run_id), within_s=60, text=log.read_text)
    [core] = [c for c in psutil.Process(process.pid).children() if c.name() == "wandb-core"]
    core.kill()
    raised = (Reading("", "skipped", 1.0, 0.0, raised=True), None)
    with store.write() as session:
        runs.move_run(session, run_id, RunState.STOPPED, "enough")
        alarms.add(session, run_id, None, 3, [raised])
    assert process.wait(60) == 0, log.read_text()
    assert "Connection lost" in log.read_text()
    wanted = sorted([*expected(store, run_id), (3, "alarm/update/skipped", 1.0)])
    assert same(read("wandb", config, run_id), wanted), log.read_text()


class Fails:
    """A tracker that fails `times` times at what it is asked, then holds what it is told."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.held: list[Figure] = []
        self.finished = 0

    def start(self, _run: str, _config: Mapping[str, Any]) -> Collection[Figure]:
        return set(self.held)

    def log(self, version: int, metrics: Mapping[str, float]) -> None:
        if self.times:
            self.times -= 1
            raise (TrackerError if self.times else KeyError)("away")
        self.held += [figure(version, name, value) for name, value in metrics.items()]

    def finish(self) -> None:
        self.finished += 1
        raise RuntimeError("cannot even finish")


def test_what_a_tracker_throws_is_tried_again_and_hurts_nobody(
    config: Config, begun: tuple[Store, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run_id = begun
    monkeypatch.setattr("ops.track.BACK_OFF_S", (0.01,))
    with store.write() as session:
        runs.move_run(session, run_id, RunState.STOPPED, "enough")
    tracker = Fails(3)
    Follower(config, tracker, "fails").follow(threading.Event())
    wanted = [figure(*row) for row in expected(store, run_id)]
    assert sorted(tracker.held) == sorted(wanted)
    assert tracker.finished == 4


def test_an_evaluation_that_grows_is_told_again_and_one_under_way_is_not(
    config: Config, begun: tuple[Store, str]
) -> None:
    store, run_id = begun
    with store.write() as session:
        row = session.get_one(Evaluation, "e3")
        row.planned, row.updated_at = 8, time.time()
    with store.read() as session:
        before = told.lines(session, run_id, Told())
    assert not [line for line in before if any("eval" in name for name in line.metrics)]
    with store.write() as session:
        row = session.get_one(Evaluation, "e3")
        row.episodes, row.success = 8, 0.5
    with store.read() as session:
        [line] = told.lines(session, run_id, before[-1].told)
        assert line.metrics["eval/dbbench/test/T0/success"] == 0.5
        assert told.lines(session, run_id, line.told) == []


def test_passwords_in_urls_stay_here_and_a_figure_of_any_size_is_told() -> None:
    values = {
        "store": {"url": "postgresql+psycopg://agentrl:se-cret@db:5432/agentrl"},
        "broker": {"url": "${AGENTRL_AMQP_URL}"},
        "policy": [{"url": "http://host:7000/v1"}, 7],
    }
    assert without_passwords(values) == {
        **values,
        "store": {"url": "postgresql+psycopg://agentrl:***@db:5432/agentrl"},
    }
    assert figure(1, "max_ratio", 1e300) == (1, "max_ratio", math.inf)


def test_up_starts_a_follower_only_where_a_tracker_is_used(config: Config) -> None:
    def names(used: Config) -> list[str]:
        return [child.name for child in children(used, Path("run.toml"))]

    assert "track" not in names(config)
    section = msgspec.structs.replace(config.trackers, use=["tensorboard"])
    assert "track" in names(msgspec.structs.replace(config, trackers=section))


def test_no_tracker_is_one_clear_error(config: Config, tmp_path: Path, signals: None) -> None:
    path = tmp_path / "run.toml"
    path.write_text(loading.to_toml(config))
    with pytest.raises(ConfigError, match=r"trackers\.use names no tracker"):
        track(path, supervised=False)
