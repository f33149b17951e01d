"""The policy server process: follows its tracks and answers requests until told to stop.

consumes  checkpoints of the live lineage, requests over HTTP
produces  completions, rows of policy_servers and servings
waits for the registry, which it reads on events and every LOOK_S
ends      when told to stop: refuses, drains, closes its row; it stays after the end of a run
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

from sqlalchemy.orm import Session

from agentrl.broker.api import Broker
from agentrl.broker.events import EventListener, EventPublisher
from agentrl.broker.messages import CheckpointPublished, PoolChanged
from agentrl.core.config.secrets import secret
from agentrl.core.config.sections.policies import PolicyServer as ServerConfig
from agentrl.core.errors import PolicyError, StoreUnavailable
from agentrl.core.logging import get_logger
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints
from agentrl.db.store import Store
from agentrl.serving.checkpoint_loader import tolerance
from agentrl.serving.engines import EXTERNAL, Make, ServingConfig, make_engine
from agentrl.serving.follower import Follower, FollowerConfig
from agentrl.serving.registration import Registration
from agentrl.serving.served_checkpoints import ServedCheckpoints
from agentrl.serving.server import PolicyApp, Server

TICK_S = 0.2  # most time between two looks at the engine and at what is to be let go
SOON_S = 0.05  # while a checkpoint drains
LOOK_S = 2.0  # most time between two looks at the registry; TICK_S without a broker
BLINK_S = 1.0  # for the store to answer, before the last look's answer stands

log = get_logger()


class EngineDied(PolicyError):
    """The engine has died; the supervisor starts another process."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """The run whose checkpoints are served. `broker`: for events; without it we only poll."""

    run_id: str
    store: Store
    broker: Broker | None = None


def serve_policy(
    config: ServingConfig,
    server: ServerConfig,
    run: FollowedRun,
    stop: threading.Event,
    engine_for: Make | None = None,
) -> None:
    """Serve until `stop`. Raises ConfigError, StoreError at start, EngineDied later.

    engine_for: makes the engine; `make_engine` unless told otherwise.
    """
    registration = Registration(run.run_id, run.store, server)
    if server.engine == EXTERNAL:
        from agentrl.serving.external.engine import serve_external

        with closing(CheckpointWatch(run)) as watch:
            serve_external(config, server, registration, watch.changed, stop)
        return
    token = secret(server.token_env)
    served, ended = ServedCheckpoints(), threading.Event()
    with ExitStack() as stack:
        engine = (engine_for or make_engine)(config, server, stop)
        stack.callback(engine.close)
        watch = stack.enter_context(closing(CheckpointWatch(run)))
        bound, cache = tolerance(config.model.dtype, server.tolerance), config.cache
        follower_config = FollowerConfig(
            registration.server_id, server.tracks, bound, server.drain_s, cache, stop
        )
        follower = Follower(engine, served, run.store, follower_config)
        app = PolicyApp(engine, served, token)
        http = Server(app, server.host, server.port, guarded=bool(token))
        stack.callback(http.close)
        registration.register(server.engine, http.url)
        stack.callback(registration.end)
        pool = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="beat"))
        own = stack.enter_context(closing(run.store.one_thread()))
        beats = pool.submit(_beat, registration, own, served, server.beat_s, ended)
        stack.callback(ended.set)
        stack.callback(served.close)
        while not stop.is_set():
            before = served.tracks()
            follower.step(watch.live())
            served.problem = engine.problem() or follower.problem()
            if served.tracks() != before:
                watch.changed()
            if beats.done():
                beats.result()
            if not engine.alive():
                raise EngineDied(f"policy server {server.name}: the engine's thread ended")
            watch.wait(SOON_S if follower.is_retrying else TICK_S)


class CheckpointWatch:
    """The live lineage, read on events and every LOOK_S."""

    def __init__(self, run: FollowedRun, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._clock = clock
        self._wake = threading.Event()
        self._live: Sequence[Checkpoint] = ()
        self._look_at = 0.0
        self._waker = self._announcer = None
        if run.broker is not None:
            event = PoolChanged(run_id=run.run_id)
            self._waker = EventListener(run.broker, run.run_id, (CheckpointPublished,), self._wake)
            self._announcer = EventPublisher(run.broker, run.run_id, event)

    def live(self) -> Sequence[Checkpoint]:
        """Return the live lineage; the last known one while the database is unavailable."""
        if self._wake.is_set() or self._clock() >= self._look_at:
            self._wake.clear()
            with suppress(StoreUnavailable):  # the store has said so
                self._live = _live(self._run.store, self._run.run_id)
            self._look_at = self._clock() + (LOOK_S if self._waker else TICK_S)
        return self._live

    def wait(self, timeout_s: float) -> None:
        self._wake.wait(timeout_s)

    def changed(self) -> None:
        """Announce that a serving row changed, without waiting for the broker."""
        if self._announcer is not None:
            self._announcer.announce()

    def close(self) -> None:
        for thread in (self._waker, self._announcer):
            if thread is not None:
                thread.close()


def _live(store: Store, run_id: str) -> Sequence[Checkpoint]:
    """Read the live lineage. Raises StoreUnavailable within a connection's timeouts."""

    def read(session: Session) -> Sequence[Checkpoint]:
        live = checkpoints.live_checkpoints(session, run_id)
        session.expunge_all()
        return live

    return store.ask(read, patience_s=BLINK_S)


def _beat(
    registration: Registration,
    store: Store,
    served: ServedCheckpoints,
    beat_s: float,
    ended: threading.Event,
) -> None:
    """Extend the lease until the server ends; requests are served also without the database.

    Raises StoreError, like `Registration.beat`.
    """
    while not ended.wait(beat_s):
        try:
            registration.beat(served, store)
        except StoreUnavailable as error:
            log.warning("Lease not renewed", error=str(error))
