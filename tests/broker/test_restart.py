"""A RabbitMQ of our own, stopped and started again under a publisher and a consumer."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running import eventually
from trajectories import finished, published_event

from agentrl.broker import connect
from agentrl.broker.queue_names import EVENTS, TRAJECTORIES, trainer_queue
from agentrl.core.errors import BrokerUnavailable

SERVICES = Path(__file__).parents[2] / ".ci" / "services"


def services(verb: str, folder: Path, *names: str) -> str:
    command = [str(SERVICES), verb, str(folder), *names]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=180).stdout.decode()


@pytest.fixture
def server(amqp_url: str) -> Iterator[Path]:
    """Folder of a running RabbitMQ; needs what the shared one needs, and root."""
    if os.geteuid() != 0 or shutil.which("rabbitmq-server") is None:
        pytest.skip("needs root and an installed rabbitmq-server")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    services("start", folder, "rabbitmq")
    yield folder
    services("stop", folder)
    shutil.rmtree(folder)


def control(folder: Path, *words: str) -> None:
    """`rabbitmqctl` of the server in that folder, as the user it runs as."""
    script = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmqctl"))[-1]
    own = {
        "HOME": str(folder / "rmq"),
        "ERL_EPMD_PORT": (folder / "epmd.port").read_text().strip(),
        "RABBITMQ_NODENAME": "agentrl@localhost",
    }
    names = [f"{name}={value}" for name, value in own.items()]
    user = ["setpriv", "--reuid=rabbitmq", "--regid=rabbitmq", "--clear-groups", "env", *names]
    subprocess.run([*user, str(script), *words], check=True, capture_output=True, timeout=120)


@pytest.mark.slow
def test_a_body_waits_while_the_server_is_out_of_memory(server: Path) -> None:
    """And an event gives up soon: it only wakes."""
    broker = connect(services("env", server).strip().partition("=")[2])
    broker.declare_run("run")
    publisher = broker.publisher()
    control(server, "set_vm_memory_high_watermark", "0")
    waited: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        body = finished("run", member=0)
        sent = pool.submit(publisher.publish, TRAJECTORIES, "run", body, waiting=waited.append)
        eventually(lambda: len(waited) > 2, within_s=60, text=lambda: str(waited))
        with pytest.raises(BrokerUnavailable, match="blocks publishers"):
            publisher.publish(EVENTS, "run", published_event("run"))
        assert not sent.done()
        control(server, "set_vm_memory_high_watermark", "0.4")
        sent.result(timeout=120)
    consumer = broker.consumer(trainer_queue("run"))
    assert [delivery.message for delivery in consumer.receive(5, 60)] == [body]
    publisher.close()
    consumer.close()


@pytest.mark.slow
def test_confirmed_messages_and_waiting_callers_outlive_a_restart_of_the_server(
    server: Path,
) -> None:
    url = services("env", server).strip().partition("=")[2]
    broker = connect(url)
    broker.declare_run("run")
    publisher = broker.publisher()
    for member in range(20):
        publisher.publish(TRAJECTORIES, "run", finished("run", member=member))
    consumer = broker.consumer(trainer_queue("run"))
    held = consumer.receive(5, 10)
    assert held
    services("stop", server)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(publisher.publish, TRAJECTORIES, "run", finished("run", member=20))
        services("start", server, "rabbitmq")
        waiting.result(timeout=60)
    consumer.ack(held)
    seen: set[int] = set()
    while len(seen) < 21 and (deliveries := consumer.receive(50, 30)):
        seen |= {delivery.message.trajectory.member for delivery in deliveries}  # type: ignore[union-attr]
        consumer.ack(deliveries)
    assert seen == set(range(21))
    publisher.close()
    consumer.close()
