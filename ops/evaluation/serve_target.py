"""Serves the evaluated policy: an engine in this process behind HTTP, or an external API.

Target ─▶ engine: local, made for it · vLLM, kept for the next checkpoint of its run
             └─▶ loaded, proven ─▶ PolicyApp ─▶ LivePolicy
"""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

from agentrl.checkpoints import manifest
from agentrl.core.config.config import Config
from agentrl.core.errors import CheckpointError, PolicyError
from agentrl.core.logging import get_logger
from agentrl.core.types import CURRENT
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.ops.configuration.serving import serving_config
from agentrl.ops.evaluation.ending_event import EndingEvent
from agentrl.ops.evaluation.target import Target
from agentrl.serving.checkpoint_loader import LoadingEngine, tolerance, verify_weights
from agentrl.serving.engine_api import EngineAway
from agentrl.serving.engines import make_engine
from agentrl.serving.served_checkpoints import ServedCheckpoints
from agentrl.serving.server import PolicyApp, Server
from agentrl.workers.attempt_errors import EpisodeStopped

LOOK_S = 0.5  # between two looks at a vLLM that starts, or that may have lost what it held
PATIENCE_S = 30.0  # with a vLLM that answers and refuses what it lost

log = get_logger()


@contextmanager
def serve_target(config: Config, target: Target) -> Iterator[LivePolicy]:
    """One target. Raises what `Servers.served` raises."""
    with closing(Servers()) as servers, servers.served(config, target) as policy:
        yield policy


class Servers:
    """Serves targets one after another; used by one thread. `stop`: ends waiting for an engine.

    `ending`: set by `stop`, and while what serves a target is lost for good.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()
        self.ending: threading.Event = EndingEvent(self._stop)
        self._engine: LoadingEngine | None = None
        self._is_kept = False
        self._run_id: str | None = None  # whose checkpoints it was started with

    @contextmanager
    def served(self, config: Config, target: Target) -> Iterator[LivePolicy]:
        """Raises CheckpointError, PolicyError where the engine fails, also later, Stopped,
        ConfigError.
        """
        self.ending.clear()
        if target.external is not None:
            from agentrl.serving.external.engine import serve_for_evaluation

            with serve_for_evaluation(serving_config(config), target.external) as policy:
                yield policy
            return
        self._is_kept = config.eval.engine == "vllm"  # the local one is made for each target
        with ExitStack() as stack:
            if not self._is_kept:
                stack.callback(self.close)
            engine, name = self.load_engine(config, target), target.checkpoint_id
            stack.callback(_forget, engine, name)
            table = ServedCheckpoints()
            table.serve(CURRENT, name, target.version or 0)
            app = PolicyApp(engine, table, "")
            http = stack.enter_context(closing(Server(app, "127.0.0.1", 0, guarded=False)))
            keeper = ExternalTargets(engine, config, target, self.ending)
            if self._is_kept:
                stack.enter_context(closing(keeper))
                keeper.start()
            try:
                yield LivePolicy("eval", http.url, CURRENT, name, target.version or 0)
            except (EpisodeStopped, PolicyError):
                if keeper.error is not None:
                    raise keeper.error from None
                raise

    def abandon(self) -> None:
        """Fail unanswered requests, unless the engine is kept for other targets."""
        if not self._is_kept:
            self.close()

    def close(self) -> None:
        """End the engine that is kept."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def load_engine(self, config: Config, target: Target) -> LoadingEngine:
        """An engine that holds the target: the kept one, or one made for it, until `close`.

        A vLLM that was lost meanwhile starts with what it held, whose files may be gone by now.
        """
        idle = self._engine
        if idle is not None and target.run_id and target.run_id == self._run_id and idle.alive():
            try:
                self._load(idle, config, target)
                return idle
            except PolicyError as error:
                log.warning("vLLM restarted", error=str(error))
        self.close()
        self._run_id = target.run_id
        own = EndingEvent(self._stop)  # which its `close` sets
        engine = self._engine = make_engine(serving_config(config), config.eval_server(), own)
        self._load(engine, config, target)
        return engine

    def _load(self, engine: LoadingEngine, config: Config, target: Target) -> None:
        while not self._stop.is_set():
            with suppress(EngineAway):
                _verify(engine, config, target)
                return
            if not engine.alive():
                raise _gone_error(config)
            self._stop.wait(LOOK_S)
        raise EpisodeStopped("the evaluator is stopping")


class ExternalTargets:
    """A thread that loads the target again where its engine was started again and holds nothing.

    `error`: why it never will be, with `lost` set. What vLLM refuses is tried again for
    `patience_s`: meanwhile episodes wait for it.
    """

    def __init__(
        self,
        engine: LoadingEngine,
        config: Config,
        target: Target,
        lost: threading.Event,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.error: CheckpointError | PolicyError | None = None
        self._engine = engine
        self._config = config
        self._target = target
        self._lost = lost
        self._patience_s = patience_s
        self._refused: float | None = None  # since when, by the monotonic clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="eval-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _keep(self) -> None:
        while self.error is None and not self._ended.wait(LOOK_S):
            if self._target.checkpoint_id in self._engine.names():
                self._refused = None
            else:
                self._load(time.monotonic())
        if self.error is not None:
            self._lost.set()

    def _load(self, now: float) -> None:
        try:
            _verify(self._engine, self._config, self._target)
        except CheckpointError as error:
            self.error = error
        except EngineAway:
            if not self._engine.alive():
                self.error = _gone_error(self._config)
        except PolicyError as error:
            if self._refused is None:
                self._refused = now
                log.warning("Checkpoint not yet loaded again", error=str(error))
            if time.monotonic() - self._refused >= self._patience_s:
                self.error = error


def _gone_error(config: Config) -> PolicyError:
    file = config.home() / "logs" / f"vllm-{config.eval_server().name}.log"
    return PolicyError(f"eval.engine: vLLM does not start; see {file}")


def _forget(engine: LoadingEngine, name: str) -> None:
    with suppress(PolicyError):
        engine.unload(name)


def _verify(engine: LoadingEngine, config: Config, target: Target) -> None:
    engine.load(target.checkpoint_id, target.path)
    if target.run_id is not None:
        probe = manifest.read(target.path).probe
        bound = tolerance(config.model.dtype, config.eval_server().tolerance)
        verify_weights(engine, target.checkpoint_id, target.path, probe, bound)
