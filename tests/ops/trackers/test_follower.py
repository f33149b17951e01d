"""What one follower of a run does around a tracker that fails, is told by another, or is slow."""

import math
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from running import eventually
from sqlalchemy import select
from sqlalchemy.engine import make_url
from structlog.testing import capture_logs
from tracker_runs import begin_tracked_run, tracker_config

from agentrl.core.config.config import Config
from agentrl.core.config.sections.run import Store as StoreSection
from agentrl.core.telemetry.outages import AVAILABLE, AWAY
from agentrl.core.types import RunState, UpdateState
from agentrl.db.models.evaluations import Evaluation
from agentrl.db.models.updates import Alarm, Update
from agentrl.db.queries import tracker_cursor
from agentrl.db.queries.tracker_cursor import TrackerCursor
from agentrl.db.store import Store
from agentrl.db.transitions import evaluations, runs
from agentrl.ops.chaos.proxy import Proxy
from agentrl.ops.trackers.base import (
    Figure,
    TrackerError,
    figure,
    folder_of,
    lock_tracker,
    redact_secrets,
)
from agentrl.ops.trackers.exporter import TrackerExporter

SOON = (0.01,)  # seconds between two tries


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return tracker_config(tmp_path)


@pytest.fixture
def begun(config: Config) -> tuple[Store, str]:
    """Three updates, and an evaluation."""
    return begin_tracked_run(config)


class Fails:
    """A tracker that fails so many times at what it is told, then so many times at its end."""

    def __init__(self, logs: int = 0, ends: int = 0) -> None:
        self._logs = logs
        self._ends = ends
        self.held: list[Figure] = []
        self.started = 0

    def start(self, _run: str, _config: Mapping[str, Any]) -> Collection[Figure]:
        self.started += 1
        return set(self.held)

    def log(self, version: int, metrics: Mapping[str, float]) -> None:
        if self._logs:
            self._logs -= 1
            raise (TrackerError if self._logs else KeyError)("away")
        self.held += [figure(version, name, value) for name, value in metrics.items()]

    def finish(self) -> None:
        if self.held and self._ends:  # as a file that could not be written
            self._ends -= 1
            self.held.clear()
            raise RuntimeError("cannot even finish")


@pytest.fixture
def over(begun: tuple[Store, str]) -> Sequence[Figure]:
    """What the run has to tell, which is over."""
    store, run_id = begun
    with store.write() as session:
        runs.move_run(session, run_id, RunState.STOPPED, "enough")
        updates = session.scalars(select(Update).where(Update.run_id == run_id))
        found = [figure(u.version, name, v) for u in updates for name, v in u.metrics.items()]
    figures = {"success": 0.25, "low": 0.05, "high": 0.7}
    found += [figure(3, f"eval/dbbench/test/T0/{name}", v) for name, v in figures.items()]
    return sorted(found)


@pytest.mark.parametrize(("logs", "ends", "starts"), [(3, 0, 4), (0, 2, 3), (2, 1, 4)])
def test_what_a_tracker_throws_is_tried_again_and_hurts_nobody(
    config: Config, over: Sequence[Figure], logs: int, ends: int, starts: int
) -> None:
    tracker = Fails(logs, ends)
    TrackerExporter(config, tracker, "fails", SOON).follow(threading.Event())
    assert sorted(tracker.held) == over
    assert tracker.started == starts


def test_a_follower_waits_for_a_database_that_is_away_and_its_tracker_hears_nothing_of_it(
    config: Config, postgres_url: str
) -> None:
    address, stop, tracker = make_url(postgres_url), threading.Event(), Fails()
    store, run_id = begin_tracked_run(replace(config, store=StoreSection(url=postgres_url)))
    with store.write() as session:
        runs.move_run(session, run_id, RunState.STOPPED, "enough")
    store.close()
    with closing(Proxy(str(address.host), address.port or 5432)) as proxy, capture_logs() as lines:
        url = address.set(port=proxy.port).render_as_string(hide_password=False)
        follower = TrackerExporter(
            replace(config, store=StoreSection(url=url)), tracker, "fails", SOON
        )
        proxy.refuse()
        thread = threading.Thread(target=follower.follow, args=(stop,), daemon=True)
        thread.start()
        eventually(lambda: lines, within_s=60, text=lambda: "nothing was logged")
        assert (tracker.started, thread.is_alive()) == (0, True)
        proxy.flow()
        thread.join(60)
    assert (tracker.started, bool(tracker.held)) == (1, True)
    assert [line["event"] for line in lines] == [AWAY, AVAILABLE]


def test_a_follower_that_is_told_to_stop_ends_though_its_tracker_cannot(
    config: Config, over: Sequence[Figure]
) -> None:
    stop = threading.Event()
    stop.set()
    tracker = Fails(ends=1)
    TrackerExporter(config, tracker, "fails", SOON).follow(stop)
    assert (tracker.started, tracker.held) == (1, [])


def test_a_second_follower_of_a_run_waits_until_the_first_has_ended(
    config: Config, begun: tuple[Store, str], over: Sequence[Figure]
) -> None:
    _, run_id = begun
    tracker, folder = Fails(), folder_of("fails", config)
    with lock_tracker("fails", run_id, folder):
        with pytest.raises(TrackerError, match=f"another process exports run {run_id} to fails"):
            lock_tracker("fails", run_id, folder)
        follower = TrackerExporter(config, tracker, "fails", SOON)
        other = threading.Thread(target=follower.follow, args=(threading.Event(),), daemon=True)
        other.start()
        time.sleep(0.2)
        assert (tracker.started, other.is_alive()) == (0, True)
    other.join(60)
    assert sorted(tracker.held) == over
    with lock_tracker("fails", run_id, folder):
        pass


def test_updates_of_one_millisecond_are_all_told(
    begun: tuple[Store, str],
) -> None:
    store, run_id = begun
    with store.write() as session:
        for update in session.scalars(select(Update)):
            update.committed_at = 100.0
    versions, at = [], TrackerCursor()
    with store.read() as session:
        while found := tracker_cursor.tracker_rows(session, run_id, at, most=2):
            versions += [line.version for line in found if "loss" in line.metrics]
            at = found[-1].cursor
    assert versions == [1, 2, 3]


def test_an_update_after_the_databases_clock_went_back_is_told(begun: tuple[Store, str]) -> None:
    """Also that of a trainer which began again at an earlier version."""
    store, run_id = begun
    with store.write() as session:
        first, second, third = session.scalars(select(Update).order_by(Update.version))
        first.trainer_epoch = second.trainer_epoch = 1
        third.trainer_epoch, third.version = 2, 1
        newest = third.update_id
    with store.read() as session:
        told = tracker_cursor.tracker_rows(session, run_id, TrackerCursor(), most=2)[:2]
    with store.write() as session:
        session.get_one(Update, newest).committed_at = 0.0
    with store.read() as session:
        told += tracker_cursor.tracker_rows(session, run_id, told[-1].cursor, most=2)[:1]
    assert [line.version for line in told if "loss" in line.metrics] == [1, 2, 1]


def test_rows_of_an_update_that_was_rolled_back_are_left_out(begun: tuple[Store, str]) -> None:
    store, run_id = begun
    alarm = {"run_id": run_id, "task": "", "value": 9.0, "threshold": 1.0, "raised_at": 1.0}
    with store.write() as session:
        for update in session.scalars(select(Update)):
            name = f"of_{update.version}"
            update_id, version = update.update_id, update.version
            session.add(Alarm(name=name, update_id=update_id, version=version, **alarm))
            if version == 3:
                update.state = UpdateState.ROLLED_BACK
        session.add(Alarm(name="between", update_id=None, version=2, **alarm))
    with store.read() as session:
        rows = tracker_cursor.tracker_rows(session, run_id, TrackerCursor())
    names = [name for row in rows for name in row.metrics if name.startswith("alarm")]
    assert names == [f"alarm/update/{name}" for name in ("of_1", "of_2", "between")]
    assert [row.version for row in rows if "loss" in row.metrics] == [1, 2]


def test_an_evaluation_that_grows_or_is_measured_anew_is_told_again_and_one_under_way_is_not(
    config: Config, begun: tuple[Store, str]
) -> None:
    store, run_id = begun
    with store.write() as session:
        row = session.get_one(Evaluation, "e3")
        row.planned, row.updated_at = 8, time.time() - 3600  # interrupted long ago
    with store.read() as session:
        before = tracker_cursor.tracker_rows(session, run_id, TrackerCursor())
    assert not [line for line in before if any("eval" in name for name in line.metrics)]
    with store.write() as session:
        row = session.get_one(Evaluation, "e3")
        row.episodes, row.success = 8, 0.5
    with store.read() as session:
        [line] = tracker_cursor.tracker_rows(session, run_id, before[-1].cursor)
        assert line.metrics["eval/dbbench/test/T0/success"] == 0.5
        assert tracker_cursor.tracker_rows(session, run_id, line.cursor) == []
        found = session.get_one(Evaluation, "e3")
        again = {
            column.name: getattr(found, column.name) for column in Evaluation.__table__.columns
        }
    with store.write() as session:  # as `agentrl eval --again` does
        evaluations.delete_evaluation(session, "e3")
        session.add(Evaluation(**again | {"success": 0.25, "created_at": again["created_at"] + 9}))
    with store.read() as session:
        [line] = tracker_cursor.tracker_rows(session, run_id, line.cursor)
        assert line.metrics["eval/dbbench/test/T0/success"] == 0.25
        assert tracker_cursor.tracker_rows(session, run_id, line.cursor) == []


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (
            "postgresql+psycopg://agentrl:se-cret@db:5432/agentrl",
            "postgresql+psycopg://***@db:5432/agentrl",
        ),
        ("postgresql+psycopg://u:a/b@h/db", "postgresql+psycopg://***@h/db"),
        ("amqp://u:p@q/r?s@h", "amqp://***@h"),
        ("https://token@host", "https://***@host"),
        ("postgresql://h/db?user=u&password=hunter2", "postgresql://h/db?***"),
        ("http://host:7000/v1", "http://host:7000/v1"),
        ("${AGENTRL_AMQP_URL}", "${AGENTRL_AMQP_URL}"),
        ("who@where? there", "who@where? there"),
    ],
)
def test_account_and_query_of_a_url_stay_here(url: str, told: str) -> None:
    assert redact_secrets({"store": {"url": url}}) == {"store": {"url": told}}


def test_texts_of_an_environment_and_of_parameters_stay_here() -> None:
    values = {
        "policy": [{"vllm": {"args": ["--seed"], "env": {"HF_TOKEN": "secret"}}}, 7],
        "external": {"parameters": {"top_k": 5, "extra": [{"key": "secret"}]}, "key_env": "KEY"},
    }
    assert redact_secrets(values) == {
        "policy": [{"vllm": {"args": ["--seed"], "env": {"HF_TOKEN": "***"}}}, 7],
        "external": {"parameters": {"top_k": 5, "extra": [{"key": "***"}]}, "key_env": "KEY"},
    }


def test_a_figure_of_any_size_is_told() -> None:
    assert figure(1, "max_ratio", 1e300) == (1, "max_ratio", math.inf)
