"""Serves the metrics of one process to Prometheus.

GET /metrics ─▶ token ─▶ the registries of the process and its role, as text
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, Metric, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from agentrl.core.config.secrets import secret
from agentrl.core.config.sections.monitoring import Metrics
from agentrl.core.http.access import admits, origin
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics
from agentrl.core.telemetry.metrics import Foreign

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

PATH = "/metrics"
CONNECTIONS = 64  # of scrapers, at the same time

log = get_logger()


@contextlib.contextmanager
def serve_metrics(config: Metrics, run: str, role: str, process: str = "") -> Iterator[str]:
    """Serve the metrics of a role inside this context. Yields the URL; empty: no metrics.

    `process`: value of the label, by default the role. Raises ConfigError: no token although not
    loopback, address not available.
    """
    if not config.port:
        yield ""
        return
    from agentrl.core.http.server import (  # most processes serve nothing
        HttpServer,
        make_application,
    )

    token = secret(config.token_env)
    server = HttpServer("metrics", config.host, config.port, guarded=bool(token))
    with contextlib.closing(server):
        registry = make_registry(role, {"run": run, "process": process or role})
        application = make_application(_routes(registry, token), _fault)
        server.start(application, connections=CONNECTIONS)
        url = address(config.host, config.port)
        log.info("Metrics server started", url=url)
        yield url


def address(host: str, port: int) -> str:
    """Return the URL that Prometheus scrapes."""
    return origin(host, port) + PATH


def make_registry(role: str, own: Mapping[str, str]) -> CollectorRegistry:
    """Return what a process exports: the metrics of its role, memory and CPU. `own`: labels."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(_Labelled(metrics.COMMON.collect, own))
    registry.register(_Labelled(metrics.REGISTRIES[role].collect, own))
    for program in metrics.FOREIGN:
        if role in program.roles:
            registry.register(_Labelled(partial(_families, program), own))
    return registry


class _Labelled(Collector):
    def __init__(self, read: Callable[[], Iterable[Metric]], own: Mapping[str, str]) -> None:
        self._read, self._own = read, own

    def collect(self) -> Iterable[Metric]:
        for family in self._read():
            family.samples = [
                sample._replace(labels={**sample.labels, **self._own}) for sample in family.samples
            ]
            yield family


def _families(program: Foreign) -> list[Metric]:
    """Return the metrics of another program; none if they cannot be read."""
    read = program.read  # once: its program may end meanwhile
    try:
        found = list(text_string_to_metric_families(read() if read is not None else ""))
    except ValueError as error:
        log.warning("Metrics of another program could not be read", error=str(error))
        return []
    return [each for each in found if each.name.startswith(program.start)]


def _routes(registry: CollectorRegistry, token: str) -> "list[Route]":
    from starlette import responses, routing

    def page(request: "Request") -> "Response":  # on a thread: another program may be slow
        if not admits(token, request.headers.get("authorization", "")):
            return _fault(401, "the bearer token is missing or wrong")
        return responses.Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return [routing.Route(PATH, page)]


def _fault(status: int, message: str) -> "Response":
    from starlette.responses import PlainTextResponse

    words = f"metrics are at {PATH}" if status == 404 else message
    return PlainTextResponse(f"{words}\n", status)
