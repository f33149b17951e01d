"""Serves the metrics of one process to Prometheus. The only module that imports prometheus-client.

    GET /metrics ─▶ one of PLACES threads ─▶ token ─▶ the registry as text

A hanging scrape occupies one of a few threads for at most SCRAPE_S; the process never waits.
"""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from agentrl.core.access import admits, is_loopback, origin
from agentrl.core.config.secrets import secret
from agentrl.core.config.sections import Metrics
from agentrl.core.errors import ConfigError
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics
from agentrl.core.telemetry.metrics import Foreign, Histogram, Instrument

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

PLACES = 8  # scrapes at once; whoever comes then is hung up on
SCRAPE_S = 5.0  # of a client's silence
END_S = 0.1  # until the end of the process is noticed
PATH = "/metrics"

log = get_logger()


@contextlib.contextmanager
def serve_metrics(
    config: Metrics, run: str, role: str, process: str = "", *, scrape_s: float = SCRAPE_S
) -> Iterator[str]:
    """Count and serve the metrics of a role inside this context. Yields the URL; empty: no metrics.

    `process`: value of the label, by default the role. `scrape_s`: timeout of a silent client.
    Raises ConfigError: no prometheus-client, no token although not loopback, address not available.
    """
    if not config.port:
        yield ""
        return
    token = secret(config.token_env)
    if not token and not is_loopback(config.host):
        raise ConfigError(
            f"the metrics server needs a bearer token: {config.host} is not loopback",
            hint="set metrics.token_env to the name of the variable that contains the token",
        )
    registry = _registry()
    chosen = metrics.instruments(role)
    with contextlib.ExitStack() as stack:
        server = _listen(config, _make_page(registry), token, scrape_s)
        stack.callback(server.server_close)
        own = {"run": run, "process": process or role}
        for each in chosen:
            _bind(each, registry, own)
            stack.callback(_unbind, each)
        for program in metrics.foreign(role):
            registry.register(_ProcessCollector(program, own))
        thread = threading.Thread(
            target=server.serve_forever, args=(END_S,), name="metrics", daemon=True
        )
        thread.start()
        stack.callback(server.shutdown)
        url = address(config.host, config.port)
        log.info("Metrics server started", url=url)
        yield url


def address(host: str, port: int) -> str:
    """Return the URL that Prometheus scrapes."""
    return origin(host, port) + PATH


def _registry() -> "CollectorRegistry":
    """Create a registry with the memory and CPU metrics of the process. Raises ConfigError."""
    try:
        import prometheus_client
    except ImportError as error:
        raise ConfigError(
            "metrics.port is set, but prometheus-client is not installed",
            hint="run `pip install prometheus-client`",
        ) from error
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)
    prometheus_client.GCCollector(registry=registry)
    return registry


def _bind(each: Instrument, registry: "CollectorRegistry", own: Mapping[str, str]) -> None:
    import prometheus_client

    kinds: Mapping[str, Any] = {
        "counter": prometheus_client.Counter,
        "gauge": prometheus_client.Gauge,
        "histogram": prometheus_client.Histogram,
    }
    more = {"buckets": each.buckets} if isinstance(each, Histogram) else {}
    made = kinds[each.kind](
        each.name, each.words, labelnames=(*own, *each.labels), registry=registry, **more
    )

    def child(labels: Mapping[str, str]) -> Any:
        return made.labels(**own, **labels)

    each.child, each.forget = child, made.clear
    if not each.labels and each.kind != "gauge":
        child({})


def _unbind(each: Instrument) -> None:
    each.child = each.forget = None


class _ProcessCollector:
    """A prometheus-client collector that reads another program at every scrape."""

    def __init__(self, program: Foreign, own: Mapping[str, str]) -> None:
        self._program = program
        self._own = own

    def collect(self) -> "Iterable[Metric]":
        """Yield the metrics with our labels; none if they cannot be read."""
        from prometheus_client.parser import text_string_to_metric_families

        read = self._program.read  # once: its program may end meanwhile
        text = read() if read is not None else ""
        try:
            found = [
                each
                for each in text_string_to_metric_families(text)
                if each.name.startswith(self._program.start)
            ]
        except ValueError as error:
            log.warning("Metrics of another program could not be read", error=str(error))
            return []
        for family in found:
            family.samples = [
                sample._replace(labels={**sample.labels, **self._own}) for sample in family.samples
            ]
        return found


def _make_page(registry: "CollectorRegistry") -> Callable[[], tuple[str, bytes]]:
    from prometheus_client import exposition

    return lambda: (exposition.CONTENT_TYPE_LATEST, exposition.generate_latest(registry))


class _Server(socketserver.ThreadingTCPServer):
    """An HTTP server with one thread per scrape, at most PLACES."""

    allow_reuse_address = True
    daemon_threads = True
    places: threading.BoundedSemaphore

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore disconnected clients."""


def _listen(
    config: Metrics, page: Callable[[], tuple[str, bytes]], token: str, scrape_s: float
) -> _Server:
    """Raises ConfigError."""

    class Handler(BaseHTTPRequestHandler):
        timeout = scrape_s

        def do_GET(self) -> None:
            if not admits(token, self.headers.get("authorization", "")):
                self._answer(401, "text/plain", b"the bearer token is missing or wrong\n")
            elif self.path.partition("?")[0] != PATH:
                self._answer(404, "text/plain", f"metrics are at {PATH}\n".encode())
            else:
                self._answer(200, *page())

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Do nothing: scrapes are not logged."""

    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0][0]
        places = threading.BoundedSemaphore(PLACES)
        own = type("Server", (_Server,), {"address_family": family, "places": places})
        made: _Server = own((config.host, config.port), Handler)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"the metrics server cannot listen on {config.host}:{config.port}: {why}",
            hint="choose another metrics.port; each process needs its own port",
        ) from error
    return made
