"""Each fault of a service does to a real one what it says. The services are this file's own."""

import os
import random
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from running import ROOT, eventually
from sqlalchemy import text
from trajectories import finished

from agentrl.broker import connect
from agentrl.broker.messages import encode
from agentrl.broker.queue_names import TRAJECTORIES, trainer_queue
from agentrl.core.config.config import Config
from agentrl.core.config.sections.run import Store as StoreSection
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import MessageRefused, StoreUnavailable
from agentrl.core.telemetry import metrics
from agentrl.db.admin import fault_injection, migrate
from agentrl.db.queries.liveness import Liveness
from agentrl.db.store import open_store
from agentrl.ops.chaos.cluster import Cluster
from agentrl.ops.chaos.injectors import disks
from agentrl.ops.chaos.injectors.postgres import is_local, lose_commits
from agentrl.ops.chaos.injectors.rabbitmq import Rabbitmqctl
from agentrl.ops.chaos.observer import RunObserver
from agentrl.ops.chaos.packets import can_drop, drop_packets
from agentrl.ops.chaos.proxy import Proxy

SERVICES = ROOT / ".ci" / "services"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
needs_iptables = pytest.mark.skipif(not can_drop(), reason="needs root and iptables")


def services(verb: str, folder: Path, *names: str) -> str:
    command = [str(SERVICES), verb, str(folder), *names]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=240).stdout.decode()


def _own(name: str, binary: str) -> Iterator[Path]:
    """The folder of a service that is no other test's, on a disk of 300 MB."""
    if os.geteuid() != 0 or shutil.which(binary) is None:
        pytest.skip(f"needs root and an installed {binary}")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="chaos-"))
    folder.chmod(0o755)
    disk = folder / {"postgres": "pg", "rabbitmq": "rmq"}[name]
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs leave to mount a tmpfs")
    try:
        services("start", folder, name)
        yield folder
    finally:
        services("stop", folder)
        subprocess.run(["umount", str(disk)], check=True)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """SQLAlchemy URL of a Postgres whose crash nobody else meets."""
    for folder in _own("postgres", "runuser"):
        yield services("env", folder).strip().partition("=")[2]


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[tuple[str, Rabbitmqctl]]:
    """AMQP URL of a RabbitMQ that raises alarms for nobody else, and what administers it."""
    for folder in _own("rabbitmq", "rabbitmq-server"):
        url = services("env", folder).strip().partition("=")[2]
        yield url, Rabbitmqctl(f"{SERVICES} rabbitmqctl {folder}")


@contextmanager
def _through_proxy(url: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy of a service, and the URL by way of it."""
    port = urlsplit(url).port or 0
    with closing(Proxy("127.0.0.1", port)) as proxy:
        yield proxy, url.replace(f":{port}/", f":{proxy.port}/")


def ask(url: str, statement: str) -> Any:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        row = connection.execute(statement).fetchone()
    return row[0] if row else None


def do(url: str, statement: str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statement)


class Bystander(Cluster):
    """A stage without processes."""

    def __init__(self, url: str) -> None:
        self.direct = Config(tasks={"dbbench": Task()}, store=StoreSection(url=url))


class Onlooker(RunObserver):
    """A run whose version is the number of rows in a table."""

    def look(self) -> None:
        try:
            version = ask(self.cluster.direct.store_url(), "SELECT count(*) FROM versions")
        except psycopg.OperationalError:
            self.seen = None
        else:
            self.seen = Liveness(0.0, "running", version, 1, 1, "d", {}, {}, ())


def _is_away(service: str) -> bool:
    """Whether this process says that it waits for the service."""
    return metrics.COMMON.get_sample_value("agentrl_service_away", {"name": service}) == 1


@needs_iptables
def test_a_database_whose_packets_are_lost_is_waited_for_and_has_every_row_once(
    postgres: str,
) -> None:
    do(postgres, "CREATE TABLE numbers (n int)")
    with (
        _through_proxy(postgres) as (proxy, url),
        closing(open_store(url, stop=threading.Event())) as store,
        ThreadPoolExecutor(1) as pool,
    ):

        def insert(number: int) -> None:
            store.transact(
                lambda session: session.execute(
                    text(
                        f"INSERT INTO numbers SELECT {number} WHERE NOT EXISTS "  # noqa: S608
                        f"(SELECT 1 FROM numbers WHERE n = {number})"
                    )
                )
            )

        insert(0)
        with drop_packets(proxy.port):
            later = pool.submit(insert, 1)
            eventually(lambda: _is_away("store"), within_s=120, text=str)
            assert not later.done()
        later.result(timeout=120)
    assert ask(postgres, "SELECT array_agg(n ORDER BY n) FROM numbers") == [0, 1]
    do(postgres, "DROP TABLE numbers")


@needs_iptables
def test_a_broker_whose_packets_are_lost_is_waited_for(
    rabbitmq: tuple[str, Rabbitmqctl],
) -> None:
    with _through_proxy(rabbitmq[0]) as (proxy, url), ThreadPoolExecutor(1) as pool:
        broker = connect(url, stop=threading.Event())
        broker.declare_run("lost")
        publisher = broker.publisher()
        first, second = (finished("lost", member=member) for member in (0, 1))
        publisher.publish(TRAJECTORIES, "lost", first)
        waited: list[float] = []
        with drop_packets(proxy.port):
            later = pool.submit(
                publisher.publish, TRAJECTORIES, "lost", second, waiting=waited.append
            )
            eventually(  # the connection that stood has timed out
                lambda: _is_away("broker publisher"), within_s=120, text=lambda: str(waited)
            )
            assert not later.done()
        later.result(timeout=120)
        publisher.close()
    consumer = connect(rabbitmq[0]).consumer(trainer_queue("lost"))
    found: list[Any] = []
    while len({each.trajectory.member for each in found}) < 2:
        found += [each.message for each in consumer.receive(5, 60.0)]
    assert {each.trajectory.member for each in found} == {0, 1}
    consumer.close()


def test_a_database_without_free_connections_refuses_sessions_and_ends_those_that_stand(
    postgres: str,
) -> None:
    with closing(open_store(postgres)) as store:
        store.check()
        with fault_injection.take_connections(postgres) as take:
            assert take() >= 300 - 3
            with pytest.raises(StoreUnavailable, match=r"terminating connection|too many clients"):
                store.ask(lambda session: session.execute(text("SELECT 1")), patience_s=0.0)
            with pytest.raises(StoreUnavailable, match="too many clients"):
                open_store(postgres)
        assert store.clock() > 0, "the store of before has waited and goes on"


def test_a_stepped_clock_is_what_a_run_reads_and_the_true_one_comes_back(postgres: str) -> None:
    with fault_injection.use_own_clock(postgres), closing(open_store(postgres)) as store:
        true = store.clock()
        fault_injection.step_clock(postgres, 3600.0)
        assert 3600.0 <= store.clock() - true < 3900.0
        fault_injection.step_clock(postgres, -7200.0)
        assert -3600.0 <= store.clock() - true < -3300.0
    with closing(open_store(postgres)) as store:
        assert 0.0 <= store.clock() - true < 300.0
    assert not ask(postgres, "SELECT count(*) FROM pg_namespace WHERE nspname = 'chaos_clock'")


def test_a_commit_that_was_answered_is_lost(postgres: str) -> None:
    do(postgres, "CREATE TABLE versions (version int)")
    observer = Onlooker(Bystander(postgres), "run", open_store(postgres))
    migrate.upgrade(observer.store)
    observer.claims.add(("episode", 1, "sha256"))
    do(postgres, "CHECKPOINT")
    observer.look()
    course = lose_commits(observer, random.Random(1))
    next(course)
    do(postgres, "INSERT INTO versions VALUES (1)")
    assert ask(postgres, "SELECT count(*) FROM versions") == 1, "it was answered, others saw it"
    for _ in course:
        observer.look()
    assert ask(postgres, "SELECT count(*) FROM versions") == 0
    assert observer.claims == set(), "what a lost row said is no promise"
    assert ask(postgres, "SHOW synchronous_commit") == "on"
    do(postgres, "DROP TABLE versions")
    observer.store.close()


def test_a_full_disk_of_postgres_refuses_rows_until_it_has_room(postgres: str) -> None:
    server = fault_injection.server(postgres)
    assert server is not None
    assert is_local(server.walwriter)
    folder = Path(server.folder).parent
    assert disks.has_own_disk(folder, ROOT)
    assert not disks.has_own_disk(ROOT, ROOT), "the disk of the run is never filled"
    do(postgres, "CREATE TABLE big (body text)")
    grow = "INSERT INTO big SELECT repeat(random()::text, 100) FROM generate_series(1, 5000)"
    with closing(open_store(postgres)) as store:

        def insert(patience_s: float) -> None:
            store.transact(lambda session: session.execute(text(grow)), patience_s=patience_s)

        with disks.fill_folder(folder) as fill:
            refused: list[StoreUnavailable] = []
            while not refused:
                fill()
                try:
                    insert(0.0)
                except StoreUnavailable as error:
                    refused.append(error)
        insert(120.0)
    do(postgres, "DROP TABLE big")


def test_a_disk_alarm_holds_up_publishers_and_consumers_go_on(
    rabbitmq: tuple[str, Rabbitmqctl],
) -> None:
    url, rabbitmqctl = rabbitmq
    broker = connect(url)
    broker.declare_run("alarm")
    publisher, consumer = broker.publisher(), broker.consumer(trainer_queue("alarm"))
    waited: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        with rabbitmqctl.raise_alarm():
            body = finished("alarm", member=0)
            sent = pool.submit(
                publisher.publish, TRAJECTORIES, "alarm", body, waiting=waited.append
            )
            eventually(lambda: len(waited) > 1, within_s=60, text=lambda: str(waited))
            assert not sent.done()
        sent.result(timeout=120)
    (delivery,) = consumer.receive(5, 60.0)
    assert delivery.message == body
    consumer.ack([delivery])
    publisher.close()
    consumer.close()


def test_a_broker_of_small_messages_refuses_the_large_ones_alone(
    rabbitmq: tuple[str, Rabbitmqctl],
) -> None:
    url, rabbitmqctl = rabbitmq
    broker = connect(url)
    broker.declare_run("small")
    small = finished("small", member=0)
    large = finished("small", member=1, text=secrets.token_hex(5000))
    with rabbitmqctl.limit_size(len(encode(small)) + 10):
        publisher = broker.publisher()
        publisher.publish(TRAJECTORIES, "small", small)
        with pytest.raises(MessageRefused, match="PRECONDITION_FAILED"):
            publisher.publish(TRAJECTORIES, "small", large)
        publisher.close()
    publisher = broker.publisher()
    publisher.publish(TRAJECTORIES, "small", large)
    publisher.close()
    consumer = broker.consumer(trainer_queue("small"))
    found = [each.message for each in consumer.receive(5, 60.0)]
    while len(found) < 2:
        found += [each.message for each in consumer.receive(5, 60.0)]
    assert found == [small, large]
    consumer.close()


def test_a_rabbitmq_that_is_restarted_after_its_disk_was_full_has_what_it_confirmed(
    rabbitmq: tuple[str, Rabbitmqctl],
) -> None:
    url, rabbitmqctl = rabbitmq
    folder = Path(rabbitmqctl.folder()).parent
    services_folder = folder.parents[1]
    assert disks.has_own_disk(folder, ROOT)
    broker = connect(url)
    broker.declare_run("full")
    publisher = broker.publisher()
    sent = [finished("full", member=member) for member in range(20)]
    for body in sent[:10]:
        publisher.publish(TRAJECTORIES, "full", body)
    waited: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        with disks.fill_folder(folder):
            later = [
                pool.submit(publisher.publish, TRAJECTORIES, "full", body, waiting=waited.append)
                for body in sent[10:]
            ]
            eventually(lambda: waited or later[-1].done(), within_s=60, text=lambda: str(waited))
        services("stop", services_folder, "rabbitmq")
        services("start", services_folder, "rabbitmq")
        for each in later:
            each.result(timeout=120)
    consumer = broker.consumer(trainer_queue("full"))
    seen: set[int] = set()
    while len(seen) < 20 and (deliveries := consumer.receive(50, 60.0)):
        seen |= {each.message.trajectory.member for each in deliveries}  # type: ignore[union-attr]
        consumer.ack(deliveries)
    assert seen == set(range(20))
    publisher.close()
    consumer.close()
