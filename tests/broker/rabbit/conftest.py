"""A run's queues on the shared RabbitMQ, and a proxy before it."""

import uuid
from collections.abc import Iterator

import pika
import pytest
from rabbit_proxy import RabbitProxy

from agentrl.broker import connect
from agentrl.broker.api import Broker


@pytest.fixture
def proxy(amqp_url: str) -> Iterator[RabbitProxy]:
    parameters = pika.URLParameters(amqp_url)
    proxy = RabbitProxy((parameters.host, parameters.port))
    yield proxy
    proxy.close()


@pytest.fixture
def proxied_url(amqp_url: str, proxy: RabbitProxy) -> str:
    parameters = pika.URLParameters(amqp_url)
    return amqp_url.replace(f":{parameters.port}/", f":{proxy.port}/")


@pytest.fixture
def broker(proxied_url: str) -> Broker:
    """A broker whose connections pass through the proxy."""
    return connect(proxied_url)


@pytest.fixture
def run_id(amqp_url: str) -> Iterator[str]:
    """A run whose queues exist; they are declared and deleted beside the proxy."""
    run_id = f"test-{uuid.uuid4().hex}"
    direct = connect(amqp_url)
    direct.declare_run(run_id)
    yield run_id
    direct.delete_run(run_id)
