import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty
from typing import Any

import pika
import pytest
from amqp import exceptions
from celery import Celery
from kombu.exceptions import ChannelError
from kombu.transport import memory, pyamqp
from running import ROOT, eventually
from structlog.testing import capture_logs

from agentrl.broker.messages import RunEpisode
from agentrl.broker.queue_names import episodes_queue
from agentrl.core.config.config import Config
from agentrl.core.config.sections.run import Broker, Run
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config_loading import dumps
from agentrl.core.errors import BrokerError, BrokerUnavailable
from agentrl.workers.queue.celery_app import SWITCH_S, CommandSender, celery_app, purge_queue


@pytest.fixture(params=["embedded", "rabbit"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    url = "embedded" if request.param == "embedded" else request.getfixturevalue("amqp_url")
    return Config(
        tasks={"dbbench": Task()}, run=Run(home=str(tmp_path)), broker=Broker(tasks_url=url)
    )


@pytest.fixture
def run_id(config: Config) -> Iterator[str]:
    name = f"run-{uuid.uuid4().hex[:6]}"
    yield name
    app = celery_app(config.tasks_url(), name)
    purge_queue(app, name)
    app.close()


def _send(app: Celery, run_id: str, *names: str, expires_s: float | None = None) -> None:
    with closing(CommandSender(app, expires_s=expires_s)) as send:
        for name in names:
            send(RunEpisode(run_id=run_id, episode_id=name, fence=1))


def test_commands_reach_the_runs_queue_as_they_were_sent(config: Config, run_id: str) -> None:
    app = celery_app(config.tasks_url(), run_id)
    sent = [RunEpisode(run_id=run_id, episode_id=f"e{n}", fence=n) for n in range(3)]
    with closing(CommandSender(app)) as send:
        for command in sent:
            send(command)
    got: list[Any] = []
    with app.connection_for_read() as connection, connection.channel() as channel:
        queue = app.amqp.queues[episodes_queue(run_id)](channel)
        queue.declare()
        while message := queue.get(no_ack=True):
            got.append(message.payload[1])
    app.close()
    assert [(each["episode_id"], each["fence"]) for each in got] == [
        (command.episode_id, command.fence) for command in sent
    ]
    assert {each["run_id"] for each in got} == {run_id}


def test_a_broker_that_is_away_is_an_error(tmp_path: Path) -> None:
    broker = Broker(tasks_url="amqp://guest:guest@127.0.0.1:9//")
    config = Config(tasks={"dbbench": Task()}, run=Run(home=str(tmp_path)), broker=broker)
    app = celery_app(config.tasks_url(), "run")
    with pytest.raises(BrokerError, match="Celery broker"):
        _send(app, "run", "e")
    app.close()


def test_a_broker_that_takes_connections_and_says_nothing_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = Broker(tasks_url=f"amqp://guest:guest@127.0.0.1:{silent.getsockname()[1]}//")
        config = Config(tasks={"dbbench": Task()}, run=Run(home=str(tmp_path)), broker=broker)
        app = celery_app(config.tasks_url(), "run")
        app.conf.broker_connection_timeout = 0.2
        with pytest.raises(BrokerUnavailable, match="Celery broker"):
            _send(app, "run", "e")
        app.close()


REFUSALS = (
    exceptions.NotFound,
    exceptions.PreconditionFailed,
    exceptions.AccessRefused,
    exceptions.InternalError,
)


@pytest.mark.parametrize("error", REFUSALS)
def test_a_broker_that_refuses_its_queue_is_an_error(error: type[Exception]) -> None:
    """As RabbitMQ does while a quorum queue has no leader."""

    class RefusingChannel(memory.Channel):
        def queue_declare(self, *_args: Any, **_options: Any) -> None:
            raise error("no leader")

        queue_delete = queue_declare

    class RefusingTransport(memory.Transport):
        Channel = RefusingChannel
        connection_errors = pyamqp.Transport.connection_errors
        channel_errors = pyamqp.Transport.channel_errors
        recoverable_connection_errors = pyamqp.Transport.recoverable_connection_errors
        recoverable_channel_errors = pyamqp.Transport.recoverable_channel_errors

    app = celery_app("amqp://", "run")
    app.conf.broker_transport = RefusingTransport
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="no leader"):
            _send(app, "run", "e")
    with pytest.raises(BrokerUnavailable, match="no leader"):
        purge_queue(app, "run")
    app.close()


def waiting(app: Celery, run_id: str) -> int:
    with app.connection_for_read() as connection, connection.channel() as channel:
        return int(app.amqp.queues[episodes_queue(run_id)](channel).queue_declare()[1])


def test_commands_that_nobody_takes_expire(config: Config, run_id: str) -> None:
    """RabbitMQ drops them by itself, the embedded twin with a later command."""
    app = celery_app(config.tasks_url(), run_id)
    if config.tasks_url().startswith("filesystem://"):
        _send(app, run_id, "old", expires_s=60.0)
        for path in Path(config.tasks_url().removeprefix("filesystem://")).rglob("*.msg"):
            os.utime(path, (1.0, 1.0))
        _send(app, run_id, "new", expires_s=60.0)
        assert waiting(app, run_id) == 1
    else:
        _send(app, run_id, "old", expires_s=0.05)
        eventually(lambda: waiting(app, run_id) == 0, within_s=60, text=lambda: "it waits")
    app.close()


def test_a_message_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    """Its name is too long for a file, as its text may be for a disk."""
    app = celery_app(f"filesystem://{tmp_path / 'celery'}", "run")
    with app.connection_for_write() as connection, connection.channel() as channel:
        before = set(tmp_path.rglob("*"))
        with pytest.raises(ChannelError, match="name too long"):
            channel._put("q" * 250, {"properties": {}})
    app.close()
    assert set(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_read_has_no_message_until_it_can(tmp_path: Path) -> None:
    app = celery_app(f"filesystem://{tmp_path / 'celery'}", "run")
    folder = tmp_path / "celery" / "messages"
    _send(app, "run", "e")
    with app.connection_for_read() as connection, connection.channel() as channel:
        folder.rename(tmp_path / "away")
        with capture_logs() as lines:
            for _ in range(2):
                with pytest.raises(Empty):
                    channel._get(episodes_queue("run"))
        (tmp_path / "away").rename(folder)
        assert channel._get(episodes_queue("run"))
    app.close()
    assert [line["event"] for line in lines] == ["Celery commands cannot be read"]


def test_commands_are_received_while_the_folder_of_temporary_files_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full" / "tmp"))
    app = celery_app(f"filesystem://{tmp_path / 'celery'}", "run")
    _send(app, "run", "e")
    with app.connection_for_read() as connection, connection.channel() as channel:
        assert channel._get(episodes_queue("run"))
        with pytest.raises(Empty):
            channel._get(episodes_queue("run"))
    app.close()
    assert list((tmp_path / "celery" / "messages").iterdir()) == []


def test_of_several_workers_one_receives_a_command(tmp_path: Path) -> None:
    app = celery_app(f"filesystem://{tmp_path / 'celery'}", "run")
    _send(app, "run", *map(str, range(200)))
    received: list[str] = []

    def receive() -> None:
        with (
            app.connection_for_read() as connection,
            connection.channel() as channel,
            suppress(Empty),
        ):
            while True:
                received.append(channel._get(episodes_queue("run"))["headers"]["id"])

    workers = [threading.Thread(target=receive) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    app.close()
    assert (len(received), len(set(received))) == (200, 200)


def test_a_wait_for_a_file_ends_early_so_that_celery_looks_for_its_own_end(
    tmp_path: Path,
) -> None:
    app = celery_app(f"filesystem://{tmp_path / 'celery'}", "run")
    with (
        app.connection_for_read() as connection,
        connection.channel() as channel,
        app.amqp.TaskConsumer(channel, on_message=print),
        pytest.raises(TimeoutError),
    ):
        connection.drain_events(timeout=86_400.0)
    app.close()


@pytest.mark.parametrize("asked_before", [0, 1])
def test_a_signal_that_came_before_celerys_handlers_is_not_lost(
    tmp_path: Path, asked_before: int
) -> None:
    program = f"""
import threading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.run import Broker, Run
from agentrl.core.config.sections.tasks import Task
from agentrl.workers.queue.celery_app import celery_app, run_celery

class Stop(threading.Event):
    asked = 0
    def is_set(self):
        self.asked += 1
        return self.asked > {asked_before}

config = Config(tasks={{"dbbench": Task()}}, run=Run(home={str(tmp_path)!r}))
run_celery(celery_app(config.tasks_url(), "run"), print, Stop(), 1)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, timeout=200, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN"])
def test_the_end_of_a_session_ends_a_worker_unless_it_ignores_that(
    tmp_path: Path, handler: str
) -> None:
    config = Config(tasks={"dbbench": Task()}, run=Run(home=str(tmp_path)))
    _send(app := celery_app(config.tasks_url(), "run"), "run", "first")
    program = f"import signal; signal.signal(signal.SIGHUP, signal.{handler})" + CONSUME
    with subprocess.Popen(
        [sys.executable, "-c", program, dumps(config), "run", "1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith("ran first")
        worker.send_signal(signal.SIGHUP)
        if handler == "SIG_IGN":
            _send(app, "run", "second")
            assert worker.stdout.readline().startswith("ran second")
            worker.terminate()
        assert "Restarting" not in worker.stdout.read()
        assert worker.wait(60) == 0
    app.close()


POISON = (
    b"",
    b"\xff\xfe no text",
    b"{",
    b"[1, 2]",
    b"{}",
    b'{"properties": null, "body": "x"}',
    b'{"properties": {"delivery_tag": "1", "body_encoding": "base64"}, "body": "%"}',
    b'{"body": "W10=", "headers": {}, "properties": {"delivery_tag": "t", "body_encoding":'
    b' "base64"}, "content-type": "application/x-python-serialize", "content-encoding": "binary"}',
    b'{"body": "W10=", "headers": null, "properties": {"delivery_tag": "u", "delivery_info": 7,'
    b' "body_encoding": "base64"}, "content-type": "application/json",'
    b' "content-encoding": "utf-8"}',
)
CONSUME = """
import threading, sys
import msgspec
from agentrl.core.config.config import Config
from agentrl.workers.queue.celery_app import celery_app, run_celery
config = msgspec.json.decode(sys.argv[1], type=Config)
def say(command):  # in one piece: two threads say it
    print(f"ran {command.episode_id} {sys.getswitchinterval():g}\\n", end="", flush=True)
run_celery(celery_app(config.tasks_url(), sys.argv[2]), say, threading.Event(), int(sys.argv[3]))
"""


def _poison(config: Config, run_id: str) -> None:
    """What nobody of ours sends, in the run's queue."""
    app = celery_app(config.tasks_url(), run_id)
    app.send_task("an.unknown.task", kwargs={"x": 1})
    app.send_task("agentrl.run_episode", kwargs={"fence": "one"})
    app.send_task("agentrl.run_episode", args=[1, 2, 3])
    app.close()
    url = config.tasks_url()
    if url.startswith("filesystem://"):
        folder = Path(url.removeprefix("filesystem://")) / "messages"
        for number, body in enumerate(POISON):
            (folder / f"{number:020}_x.{episodes_queue(run_id)}.msg").write_bytes(body)
        return
    with pika.BlockingConnection(pika.URLParameters(url)) as link:
        channel = link.channel()
        for body in POISON:
            for properties in ({}, {"content_type": "application/json"}, {"content_type": "x/y"}):
                known = pika.BasicProperties(**properties)
                channel.basic_publish("", episodes_queue(run_id), body, known)


def _ran(config: Config, run_id: str, episodes: int, *, concurrency: int = 2) -> dict[str, float]:
    """What a worker of its own ran until it had run so many; the interval of Python's lock then."""
    with subprocess.Popen(
        [sys.executable, "-c", CONSUME, dumps(config), run_id, str(concurrency)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as worker:
        assert worker.stdout is not None
        ran: dict[str, float] = {}
        try:
            while len(ran) < episodes and (line := worker.stdout.readline()):
                if line.startswith(b"ran"):
                    _, name, interval_s = line.decode().split()
                    ran[name] = float(interval_s)
        finally:
            worker.terminate()
        assert worker.wait(60) == 0
    return ran


@pytest.mark.slow
def test_poison_never_stops_a_worker(config: Config, run_id: str) -> None:
    _send(app := celery_app(config.tasks_url(), run_id), run_id, "first")
    _poison(config, run_id)
    _send(app, run_id, "second", "third")
    app.close()
    assert _ran(config, run_id, 3).keys() == {"first", "second", "third"}


@pytest.mark.slow
def test_a_worker_opens_a_channel_that_its_broker_closed_again(tmp_path: Path) -> None:
    program = """
import sys, threading
from amqp.exceptions import NotFound
from agentrl.workers.queue import celery_files
from agentrl.workers.queue.celery_app import celery_app, run_celery

class Channel(celery_files.Channel):
    is_closed = True
    def _get(self, queue, timeout=None):
        if Channel.is_closed:
            Channel.is_closed = False
            raise NotFound("no leader")
        return super()._get(queue, timeout)

class Transport(celery_files.Transport):
    Channel = Channel

app = celery_app(sys.argv[1], "run")
app.conf.broker_transport = Transport
run_celery(app, lambda command: print("ran", flush=True), threading.Event(), 1)
"""
    url = f"filesystem://{tmp_path / 'celery'}"
    _send(app := celery_app(url, "run"), "run", "e")
    app.close()
    command = [sys.executable, "-c", program, url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == b"ran\n"
        finally:
            worker.terminate()
        assert worker.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [2, 300])
def test_a_thread_among_many_waits_longer_before_it_asks_for_the_lock(
    config: Config, run_id: str, concurrency: int
) -> None:
    _send(app := celery_app(config.tasks_url(), run_id), run_id, "first")
    app.close()
    own = sys.getswitchinterval()
    expected = max(own, SWITCH_S * concurrency)
    assert _ran(config, run_id, 1, concurrency=concurrency) == {"first": pytest.approx(expected)}
    assert (expected > own) == (concurrency == 300)


def test_commands_are_json_alone(config: Config, run_id: str) -> None:
    app = celery_app(config.tasks_url(), run_id)
    assert (app.conf.accept_content, app.conf.task_serializer) == (["json"], "json")
    app.close()
