"""`agentrl health`: checks one process of a run, by something that only this process does.

    dispatcher          holds the run's row lease
    worker              one on this machine holds its lease, or the run is over
    recorder, trainer   consumes its queue; for the recorder, or the run is over
    policy, envs        answers HTTP and is ready
    dashboard           answers HTTP, and the database can be read

Container engines run it as a probe, so it is fast, imports little and changes nothing. It queries
Postgres and RabbitMQ. While one of them is away, a process may fail its check although it waits and
goes on afterwards. Use `alive` where a failed probe restarts the process.
"""

import http.client
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.secrets import secret
from agentrl.core.errors import (
    AgentRLError,
    BrokerUnavailable,
    ConfigError,
    StoreUnavailable,
    nearest,
)
from agentrl.core.http.access import bracket_ipv6
from agentrl.db.admin import probe

TIMEOUT_S = 5.0
OVER = "its run is over"  # it may rest
DASHBOARD = ("", 8501)  # of the image


class Unhealthy(AgentRLError):
    """The process is not healthy, or cannot be checked."""

    exit_code = 1  # what probes of containers understand


def health(path: Path, role: str, name: str = "", *, alive: bool = False) -> str:
    """Return a line about a healthy process. Raises Unhealthy, ConfigError.

    `alive`: a process also passes while the store or the broker is unavailable.
    """
    config = config_loading.load(path)
    if role not in PROBES:
        near = nearest(role, PROBES) or f"; known: {', '.join(sorted(PROBES))}"
        raise ConfigError(f"there is no process {role}{near}")
    try:
        return f"{role}: {PROBES[role](config, name)}"
    except (AgentRLError, OSError, http.client.HTTPException) as error:
        if alive and isinstance(error, StoreUnavailable | BrokerUnavailable):
            return f"{role}: cannot be checked: {error}"
        raise Unhealthy(f"{role}: {error}", hint=getattr(error, "hint", "")) from error


def _dispatcher(config: Config, _: str) -> str:
    if not probe.dispatcher_lives(config.store_url(), config.run.name):
        probe.require_writable(config.store_url())
        raise Unhealthy("no dispatcher holds the lease")
    return "holds the lease"


def _worker(config: Config, _: str) -> str:
    host = socket.gethostname()
    if probe.run_over(config.store_url(), config.run.name):
        return OVER
    if not probe.worker_lives(config.store_url(), config.run.name, host):
        probe.require_writable(config.store_url())
        raise Unhealthy(f"no worker of {host} holds a lease")
    return "holds its lease"


def _recorder(config: Config, _: str) -> str:
    from agentrl.broker.queue_names import recorder_queue

    if probe.run_over(config.store_url(), config.run.name):
        return OVER
    return _require_consumer(config, recorder_queue)


def _trainer(config: Config, _: str) -> str:
    from agentrl.broker.queue_names import trainer_queue

    return _require_consumer(config, trainer_queue)


def _policy(config: Config, name: str) -> str:
    server = config.policy_server(name)
    address = server.host, _require_port("policy", server.port)
    _get(address, "/health", secret(server.token_env))
    return f"{server.name} is ready"


def _envs(config: Config, _: str) -> str:
    route = "/{}/api/worker_status"
    if config.envs.protocol == "openenv":
        route = "/{}/health" if len(config.tasks) > 1 else "/health"
    address = config.envs.host, _require_port("envs", config.envs.listening_port())
    for task in config.tasks:
        _get(address, route.format(task), secret(config.envs.token_env))
    return ", ".join(config.tasks)


def _dashboard(config: Config, _: str) -> str:
    _get(DASHBOARD, "/_stcore/health", "")
    probe.require_readable(config.store_url())
    return "reads the store"


PROBES: Mapping[str, Callable[[Config, str], str]] = {
    "dispatcher": _dispatcher,
    "worker": _worker,
    "recorder": _recorder,
    "trainer": _trainer,
    "policy": _policy,
    "envs": _envs,
    "dashboard": _dashboard,
}


def _require_consumer(config: Config, queue_of: Callable[[str], str]) -> str:
    """Check the consumer of a queue. Raises Unhealthy, StoreError, BrokerError."""
    from agentrl.broker.rabbit import RabbitBroker

    queue = queue_of(probe.run_id(config.store_url(), config.run.name))
    if not RabbitBroker(config.broker_url()).consumers(queue):
        raise Unhealthy(f"queue {queue} has no consumer")
    return f"consumes {queue}"


def _require_port(section: str, port: int) -> int:
    """Raise ConfigError for a port that only the server knows."""
    if not port:
        raise ConfigError(f"{section}.port is 0: a probe cannot know which port was free; set one")
    return port


def _get(address: tuple[str, int], path: str, token: str) -> None:
    """Send GET. Raises Unhealthy unless the answer is 200 without `"ready":false`.

    `address`: on which the server listens.
    """
    host, port = address
    connection = http.client.HTTPConnection(bracket_ipv6(host), port, timeout=TIMEOUT_S)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != http.client.OK or b'"ready":false' in body:
        raise Unhealthy(f"port {port} answered {answer.status} to {path}: {body[:200]!r}")
