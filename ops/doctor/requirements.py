"""The optional packages that a configuration needs."""

from collections.abc import Iterator

from agentrl.core.config.config import Config
from agentrl.ops.supervisor.env_server_host import hosts_envs
from agentrl.ops.trackers.factory import TRACKERS

TASKS = {"kg": ("pyoxigraph",), "webshop": ("bm25s", "pystemmer", "rapidfuzz")}
TRACING = ("opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk")


def packages(config: Config) -> frozenset[str]:
    """Names of distributions of the extras that some runs need and others do not."""
    return frozenset(_packages(config))


def _packages(config: Config) -> Iterator[str]:
    if config.tracing.endpoint:
        yield from TRACING
    for tracker in config.trackers.use:
        if tracker in TRACKERS:
            yield TRACKERS[tracker].distribution
    tasks = config.tasks if not config.envs.url or hosts_envs(config) else {}
    for name, task in tasks.items():
        yield from TASKS.get(name, ())
        if name == "dbbench":
            yield from _dbbench(task.options)


def _dbbench(options: dict[str, object]) -> Iterator[str]:
    """Items that are not generated are in MySQL's dialect unless the file says otherwise."""
    imported = options.get("origin", "generated") != "generated"
    if options.get("server"):
        yield "pymysql"
    elif options.get("dialect") == "mysql" or (imported and not options.get("dialect")):
        yield "sqlglot"
