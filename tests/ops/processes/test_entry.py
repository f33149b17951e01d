"""The exit codes of a process: what a supervisor tries again, and what a person has to mend."""

import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from run_transitions import World
from running import ROOT, agentrl, eventually

from agentrl.checkpoints.checkpoint_store import WeightsAway
from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Dispatch
from agentrl.core.config.sections.policies import Model
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.processes.process import TERMINATED
from agentrl.core.types import RunState
from agentrl.db.models.processes import Worker
from agentrl.db.store import open_store
from agentrl.db.transitions import runs
from agentrl.ops.processes.entry import _run_until_replaced
from agentrl.ops.runs.begin import begin, clear_queues, require_queues

STOPS = """
import signal, sys
from agentrl.ops.processes.entry import stop_on_signals
ignored = sys.argv[1] == "nohup"
signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
stop = stop_on_signals()
print("ready", flush=True)
print(stop.wait(1.0 if ignored else 60.0), flush=True)
"""


@pytest.mark.parametrize(("command", "stops"), [("up", "True"), ("nohup", "False")])
def test_the_end_of_a_session_stops_a_process_cleanly_unless_it_ignores_that(
    command: str, stops: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPS, command], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.stdout.read() == f"{stops}\n"
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("supervised", [True, False])
@pytest.mark.parametrize("service", ["store", "broker"])
def test_a_process_waits_for_a_service_that_is_away_until_a_signal(
    tmp_path: Path, service: str, supervised: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    file, output = tmp_path / "run.toml", tmp_path / "output"
    model = Model(path=str(ROOT / "models" / "tiny"))
    if supervised or service == "broker":  # `up` has begun the run, or the process before it
        begin(Config(tasks={"dbbench": Task()}, run=Run(home=str(tmp_path / "home")), model=model))
    scheme = {"store": "postgresql+psycopg", "broker": "amqp"}[service]
    file.write_text(
        f'[tasks.dbbench]\n[{service}]\nurl = "{scheme}://u:p@127.0.0.1:{port}/x"\n'
        f'[run]\nhome = "{tmp_path / "home"}"\n[model]\npath = "{ROOT / "models" / "tiny"}"\n'
    )
    flags = ["--supervised"] if supervised else []
    with agentrl("recorder", str(file), *flags, environment={}, output=output) as process:
        eventually(
            lambda: f'"service": "{service}"' in output.read_text(),
            within_s=120,
            text=output.read_text,
        )
        assert process.poll() is None
        if service == "broker" and not supervised:  # nobody reads its log
            database = tmp_path / "home" / "store.db"
            eventually(
                lambda: _waits(database)[:1] == ["broker"], within_s=60, text=output.read_text
            )
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    if service == "broker":
        assert _waits(tmp_path / "home" / "store.db") == [], "it waits no longer"
    assert "was unavailable" in output.read_text().splitlines()[-1]


def _waits(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [row[0] for row in connection.execute("SELECT service FROM service_outages")]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A run that has begun, with a worker; its file is `run.toml`."""
    config = Config(
        tasks={"dbbench": Task()},
        run=Run(home=str(tmp_path / "home")),
        model=Model(path=str(ROOT / "models" / "tiny")),
        dispatch=Dispatch(groups_per_update=1),
    )
    (tmp_path / "run.toml").write_text(config_loading.to_toml(config))
    run_id = begin(config)
    with closing(open_store(config.store_url())) as store:
        made = World(store, run_id, f"worker-{uuid.uuid4().hex}")
        with store.write() as session:
            worker = Worker(worker_id=made.worker_id, run_id=run_id, host="here", pid=1)
            runs.register_worker(session, worker, lease_s=600.0)
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("over", [True, False])
def test_a_trainer_that_was_replaced_rests_and_does_not_take_turns_with_the_other(
    world: World, tmp_path: Path, over: bool
) -> None:
    """Until the run is over, which alone is an end with 0, or it is told to end."""
    log = tmp_path / "log"
    with agentrl("trainer", str(tmp_path / "run.toml"), environment={}, output=log) as trainer:
        eventually(lambda: world.run().trainer_epoch, within_s=120, text=log.read_text)
        world.sql("UPDATE runs SET trainer_epoch = trainer_epoch + 1")  # as another that begins
        world.ready(0)
        eventually(lambda: "waiting for" in log.read_text(), within_s=120, text=log.read_text)
        with pytest.raises(subprocess.TimeoutExpired):
            trainer.wait(3.0)
        assert (world.run().trainer_epoch, world.run().version) == (2, 0)
        if over:
            with world.store.write() as session:
                runs.move_run(session, world.run_id, RunState.COMPLETED, "enough")
        else:
            trainer.terminate()
        assert trainer.wait(60) == (0 if over else TERMINATED), log.read_text()


@pytest.mark.slow
def test_who_is_told_to_end_before_the_run_is_over_does_not_say_that_it_is(
    world: World, tmp_path: Path
) -> None:
    log, file = tmp_path / "log", str(tmp_path / "run.toml")
    beside = {"AGENTRL__EVAL__EVERY": "4"}
    with agentrl("dispatcher", file, environment=beside, output=log) as dispatcher:
        held = "SELECT dispatcher_until > 0 FROM runs"
        eventually(lambda: world.ask(held)[0][0], within_s=120, text=log.read_text)
        dispatcher.terminate()
        assert dispatcher.wait(60) == TERMINATED, log.read_text()
    assert "start an evaluator, too" in log.read_text()  # as nobody else does here
    assert "start the tracker process" not in log.read_text()
    assert world.run().state == RunState.RUNNING


@pytest.mark.parametrize("role", ["dispatcher", "trainer", "evaluator"])
def test_who_ends_with_the_run_ends_well_where_it_was_over_before(
    tmp_path: Path, role: str
) -> None:
    model = Model(path=str(ROOT / "models" / "tiny"))
    config = Config(tasks={"dbbench": Task()}, run=Run(home=str(tmp_path)), model=model)
    begin(config)
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute("UPDATE runs SET state = 'completed', reason = 'enough'")
    file = tmp_path / "run.toml"
    file.write_text(config_loading.to_toml(config))
    command = [sys.executable, "-m", "agentrl.cli.main", role, str(file)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"{role}: run run is over (completed: enough)")
    assert "set another run.name" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "removed", "said"),
    [
        ("recorder", False, "Recorder started"),
        ("recorder", True, "waiting for a signal"),
        ("worker", True, "waiting for a signal"),
        ("policy", True, "Checkpoint loaded"),
    ],
)
def test_who_stays_once_the_run_is_over_makes_no_queue_again_and_ends_on_a_signal(
    world: World, tmp_path: Path, role: str, removed: bool, said: str
) -> None:
    log, file = tmp_path / "log", tmp_path / "run.toml"
    config = config_loading.load(file)
    with world.store.write() as session:
        runs.move_run(session, world.run_id, RunState.COMPLETED, "enough")
    if removed:
        clear_queues(config, world.run_id)
    with agentrl(role, str(file), environment={}, output=log) as process:
        eventually(
            lambda: log.exists() and said in log.read_text(), within_s=120, text=log.read_text
        )
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert require_queues(config, world.run_id) is not removed
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


@pytest.mark.parametrize("supervised", [True, False])
def test_who_is_told_to_stop_while_the_object_store_is_away_ends_without_an_error(
    supervised: bool,
) -> None:
    stop = threading.Event()

    def work() -> None:
        raise WeightsAway("s3://bucket/run: no answer within 60 s")

    def run() -> bool:
        return _run_until_replaced(work, stop, supervised=supervised, alone=not supervised)

    with pytest.raises(WeightsAway):
        run()
    stop.set()
    assert not run()
