"""The real libraries, offline: what a run's rows say arrives once, whatever is killed."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import wandb_file
from running import ROOT, eventually
from sqlalchemy import select
from tracker_runs import begin_tracked_run, tracker_config

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.core.types import RunState
from agentrl.db.models.updates import Update
from agentrl.db.store import Store
from agentrl.db.transitions import alarms, runs
from agentrl.db.transitions.alarms import AlarmReading
from agentrl.ops.processes import tracker
from agentrl.ops.supervisor.children import children
from agentrl.ops.trackers.exporter import TrackerExporter
from agentrl.ops.trackers.factory import make
from agentrl.ops.trackers.wandb_file import whole

NAMES = ("tensorboard", "mlflow", pytest.param("wandb", marks=pytest.mark.slow))
MANY = 300  # figures
MIDST = {"tensorboard": 12_000, "mlflow": 4_000, "wandb": 32_768}  # bytes, when they are half told
Rows = list[tuple[int, str, float]]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return tracker_config(tmp_path)


@pytest.fixture
def begun(config: Config) -> tuple[Store, str]:
    """Three updates, an alarm that was raised, an evaluation."""
    store, run_id = begin_tracked_run(config)
    with store.write() as session:
        reading = AlarmReading("dbbench", "entropy", 0.001, 0.01, raised=True)
        alarms.add_alarms(session, run_id, None, 2, [(reading, None)])
    return store, run_id


def read(name: str, config: Config, run_id: str) -> Rows:
    """What a tracker holds, as its own library reads it, by version and name."""
    folder = config.home() / "trackers" / name
    if name == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(folder / run_id), size_guidance={"scalars": 0})
        found.Reload()
        tags = found.Tags()["scalars"]
        return sorted((e.step, tag, e.value) for tag in tags for e in found.Scalars(tag))
    if name == "wandb":
        return sorted(wandb_file.figures(folder, run_id))
    from mlflow.tracking import MlflowClient

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


def test_lines_of_mlflow_that_were_cut_short_are_told_again(
    config: Config, begun: tuple[Store, str]
) -> None:
    store, run_id = begun
    stop = threading.Event()
    stop.set()
    TrackerExporter(config, make("mlflow", config), "mlflow").follow(stop)
    [path] = (config.home() / "trackers" / "mlflow").glob("*/*/metrics/loss")
    first, *others = path.read_bytes().splitlines(keepends=True)
    assert len(others) == 2
    path.write_bytes(first + others[0][:-3])
    (path.parent / "skipped").write_bytes(b"")
    TrackerExporter(config, make("mlflow", config), "mlflow").follow(stop)
    assert same(read("mlflow", config, run_id), expected(store, run_id))


@pytest.mark.parametrize("name", NAMES)
def test_every_row_arrives_once_though_the_follower_begins_anew(
    name: str, config: Config, begun: tuple[Store, str]
) -> None:
    store, run_id = begun
    stop = threading.Event()
    stop.set()  # one look, then the end
    for _ in range(2):
        TrackerExporter(config, make(name, config), name).follow(stop)
        assert same(read(name, config, run_id), expected(store, run_id))
    with store.write() as session:
        alarms.add_alarms(
            session, run_id, None, 3, [(AlarmReading("", "skipped", 1.0, 0.0, raised=True), None)]
        )
    TrackerExporter(config, make(name, config), name).follow(stop)
    wanted = sorted([*expected(store, run_id), (3, "alarm/update/skipped", 1.0)])
    assert same(read(name, config, run_id), wanted)


@pytest.fixture
def told_by(config: Config, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Begins `agentrl tracker` with that tracker; what it says is in `log`."""
    path, begun = tmp_path / "run.toml", []

    def follow(name: str) -> subprocess.Popen[bytes]:
        section = msgspec.structs.replace(config.trackers, use=[name])
        path.write_text(config_loading.to_toml(msgspec.structs.replace(config, trackers=section)))
        command = [sys.executable, "-m", "agentrl.cli.main", "tracker", str(path)]
        with (tmp_path / "log").open("ab") as output:
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        begun.append(process)
        return process

    yield follow
    for process in begun:
        process.kill()
        process.wait()


def _written(folder: Path, since: float) -> int:
    """Bytes of the files that were written to since then."""
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # W&B removes some
                status = (Path(place) / name).stat()
                found += status.st_size * (status.st_mtime > since)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "midst"), MIDST.items())
def test_a_follower_that_is_killed_while_it_tells_leaves_neither_a_gap_nor_a_double(
    name: str,
    midst: int,
    config: Config,
    begun: tuple[Store, str],
    told_by: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    store, run_id = begun
    folder, log = config.home() / "trackers" / name, config.home() / "log"
    wanted = expected(store, run_id)
    for kill in range(2):
        raised = [AlarmReading("", f"kill{kill}-{n}", 1.0, 0.0, raised=True) for n in range(MANY)]
        with store.write() as session:
            alarms.add_alarms(session, run_id, None, 3, [(reading, None) for reading in raised])
        wanted += [(3, f"alarm/update/{reading.name}", 1.0) for reading in raised]
        since, process = time.time(), told_by(name)
        while _written(folder, since) < midst:  # pytest's own limit ends a hang
            assert process.poll() is None, log.read_text()
            time.sleep(0.005)
        process.kill()
        process.wait()
    with store.write() as session:
        runs.move_run(session, run_id, RunState.STOPPED, "enough")
    assert told_by(name).wait(200) == 0, log.read_text()
    assert same(read(name, config, run_id), sorted(wanted)), log.read_text()


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
    eventually(lambda: wandb_file.files(folder, run_id), within_s=200, text=log.read_text)
    [core] = [c for c in psutil.Process(process.pid).children() if c.name() == "wandb-core"]
    core.kill()
    raised = (AlarmReading("", "skipped", 1.0, 0.0, raised=True), None)
    with store.write() as session:
        runs.move_run(session, run_id, RunState.STOPPED, "enough")
        alarms.add_alarms(session, run_id, None, 3, [raised])
    assert process.wait(200) == 0, log.read_text()
    assert "Connection lost" in log.read_text()
    wanted = sorted([*expected(store, run_id), (3, "alarm/update/skipped", 1.0)])
    assert same(read("wandb", config, run_id), wanted), log.read_text()


@pytest.mark.slow
def test_a_file_of_wandb_that_a_full_disk_cut_short_is_told_of_and_written_again(
    config: Config,
    begun: tuple[Store, str],
    told_by: Callable[[str], subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    store, run_id = begun
    folder, log = config.home() / "trackers" / "wandb", tmp_path / "log"
    stop = threading.Event()
    stop.set()
    TrackerExporter(config, make("wandb", config), "wandb").follow(stop)
    [former] = wandb_file.files(folder, run_id)
    process = told_by("wandb")
    eventually(lambda: len(wandb_file.files(folder, run_id)) == 2, within_s=200, text=log.read_text)
    assert former.exists()
    [core] = [c for c in psutil.Process(process.pid).children() if c.name() == "wandb-core"]
    core.rlimit(psutil.RLIMIT_FSIZE, (1000, 1000))
    with store.write() as session:
        runs.move_run(session, run_id, RunState.STOPPED, "enough")
    eventually(
        lambda: "could not be completed" in log.read_text(), within_s=200, text=log.read_text
    )
    assert process.wait(200) == 0, log.read_text()
    [file] = wandb_file.files(folder, run_id)
    assert file != former
    assert same(read("wandb", config, run_id), expected(store, run_id)), log.read_text()
    cut = tmp_path / "cut"
    cut.write_bytes(file.read_bytes()[:-1])
    assert whole(file)
    assert not whole(cut)


def test_up_starts_a_follower_only_where_a_tracker_is_used(config: Config) -> None:
    def names(used: Config) -> list[str]:
        return [child.name for child in children(used, Path("run.toml"))]

    assert "tracker" not in names(config)
    section = msgspec.structs.replace(config.trackers, use=["tensorboard"])
    assert "tracker" in names(msgspec.structs.replace(config, trackers=section))


def test_no_tracker_is_one_clear_error(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"trackers\.use is empty"):
        tracker.run(config, threading.Event())
