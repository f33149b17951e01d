"""The env server: episodes of every task over HTTP, and the one process that talks to Docker.

    HTTP ─▶ EnvApp ─▶ Sessions ─▶ a thread ─▶ Environment ─▶ (a sandbox)

SIGTERM: no new episodes, a moment for the running ones, then they are cancelled and every
container is removed.
"""

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Mapping

from agentrl.core.config.secrets import secret
from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.core.errors import ConfigError
from agentrl.core.http.server import HttpServer
from agentrl.core.logging import get_logger
from agentrl.envs import registry
from agentrl.envs.sandbox.sandbox import make_sandboxes
from agentrl.envs.server import wire
from agentrl.envs.server.app import EnvApp, HostedTask
from agentrl.envs.server.controller_heartbeats import Controller
from agentrl.envs.server.in_process import needs_container
from agentrl.envs.server.maintenance import Maintenance
from agentrl.envs.server.session import Timings
from agentrl.envs.server.sessions import Sessions

DRAIN_S = 0.5  # at the end: how long clients may still end their episodes themselves
REAP_EVERY = 30  # tends

ENVS = Envs()

log = get_logger()


class EnvServer:
    """Runs the HTTP handlers on a socket in its own thread, with their sandboxes."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        envs: Envs = ENVS,
        timings: Timings | None = None,
        *,
        owner: str = "run",
    ) -> None:
        """Bind and answer requests. `owner`: the run's name, a label of its containers.

        Raises ConfigError: address unavailable, no token off loopback, no engine, no image, no
        package `websockets` for OpenEnv.
        """
        if envs.protocol == "openenv":
            _require_websockets()
        token = secret(envs.token_env)
        self._http = HttpServer("envs", envs.host, envs.listening_port(), guarded=bool(token))
        self.port, self.url = self._http.port, self._http.url
        self._docker = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self._http.close)
            undo.enter_context(self._docker)
            hosted, tend = _host(tasks, envs.docker_image, owner, self._docker)
            timings = timings or Timings(call_s=envs.call_timeout_s)
            self._sessions = Sessions(envs.concurrency, envs.idle_timeout_s, timings)
            address = envs.advertise or self.url
            beat_s = timings.beat_s
            controller = Controller(envs.controller, address, envs.concurrency, beat_s=beat_s)
            if envs.protocol == "openenv":
                from agentrl.envs.server.openenv_app import OpenEnvApp

                app = OpenEnvApp(hosted, self._sessions, token, tend)
                self._http.start(app, socket_bytes=wire.MAX_BODY)
            else:
                served = EnvApp(hosted, self._sessions, token, controller, tend)
                self._http.start(served.application())
            undo.pop_all()

    def close(self) -> None:
        """Refuse new episodes, wait briefly for running ones, cancel them, remove containers."""
        self._sessions.draining = True
        deadline = time.monotonic() + DRAIN_S
        while self._sessions.running() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._http.close()
        self._docker.close()


def serve(tasks: Mapping[str, Task], envs: Envs, owner: str, stop: threading.Event) -> None:
    """Serve until `stop`. Raises ConfigError, ItemError at start."""
    server = EnvServer(tasks, envs, owner=owner)
    log.info("Env server started", url=server.url, tasks=sorted(tasks))
    try:
        stop.wait()
    finally:
        server.close()


def _require_websockets() -> None:
    try:
        importlib.import_module("websockets")
    except ImportError as error:
        raise ConfigError(
            "envs.protocol openenv needs the package websockets",
            hint="run `pip install 'agentrl-system[openenv]'`",
        ) from error


def _host(
    tasks: Mapping[str, Task], image: str, owner: str, docker: contextlib.ExitStack
) -> tuple[Mapping[str, HostedTask], Callable[[], None]]:
    """Open the tasks with their sandboxes; closing `docker` removes those."""
    hosted = {
        name: HostedTask(source, task.max_turns or source.max_turns)
        for name, task in tasks.items()
        for source in [registry.source(name, task.options, task.source)]
    }
    if not any(needs_container(each.source) for each in hosted.values()):
        return hosted, lambda: None
    from agentrl.envs.sandbox.docker_engine import Engine

    engine = Engine(owner)
    docker.callback(engine.close)
    ticks = iter(range(1 << 62))

    def reap() -> None:
        if next(ticks) % REAP_EVERY == 0:
            engine.reap()

    chores = [reap]
    for each in hosted.values():
        for pool in make_sandboxes(each.source, engine, image):
            docker.callback(pool.close)
            chores.append(pool.tend)
    return hosted, Maintenance(chores)
