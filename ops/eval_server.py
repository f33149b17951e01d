"""What a target is measured on: an engine of this process behind its HTTP face, or its own API.

Target ─▶ engine: local, made for it · vLLM, kept for the next checkpoint of its run
             └─▶ loaded, proven ─▶ Face ─▶ LivePolicy
"""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from core import manifest
from core.config import Config
from core.errors import PolicyError
from core.types import CURRENT
from db.registry import LivePolicy
from ops.eval_target import Target
from serving.policy import make_engine
from serving.proof import Loads, prove
from serving.request import EngineAway
from serving.served import Served
from serving.server import Face, Server
from workers.episode import Stopped

LOOK_S = 0.5  # between two looks at a vLLM that starts, or that may have lost what it held


@contextmanager
def served(config: Config, target: Target) -> Iterator[LivePolicy]:
    """One target. Raises what `Servers.served` raises."""
    with closing(Servers()) as servers, servers.served(config, target) as policy:
        yield policy


class Servers:
    """Serves targets one after another; used by one thread. `stop`: ends waiting for an engine."""

    def __init__(self, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()
        self._kept: Loads | None = None
        self._run_id: str | None = None  # whose checkpoints it was started with

    @contextmanager
    def served(self, config: Config, target: Target) -> Iterator[LivePolicy]:
        """Raises CheckpointError, PolicyError where the engine fails, Stopped, ConfigError."""
        if target.external is not None:
            from serving.external import measured

            with measured(config, target.external) as policy:
                yield policy
            return
        engine, name = self._engine(config, target), target.checkpoint_id
        ended = threading.Event()
        self._load(engine, config, target)
        keeper = threading.Thread(target=_keep, args=(engine, config, target, ended))
        table = Served()
        table.serve(CURRENT, name, target.version or 0)
        http = Server(Face(engine, table, ""), "127.0.0.1", 0, guarded=False)
        keeper.start()
        try:
            yield LivePolicy("eval", http.url, CURRENT, name, target.version or 0)
        finally:
            ended.set()
            http.close()
            keeper.join()
            with suppress(PolicyError):
                engine.unload(name)
            if config.eval.engine == "local":
                self.close()

    def close(self) -> None:
        """End the engine that is kept."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def _engine(self, config: Config, target: Target) -> Loads:
        if self._kept is not None and not (
            target.run_id and target.run_id == self._run_id and self._kept.alive()
        ):
            self.close()
        if self._kept is None:
            self._run_id = target.run_id
            self._kept = make_engine(config, config.eval_server(), self._stop)
        return self._kept

    def _load(self, engine: Loads, config: Config, target: Target) -> None:
        while not self._stop.is_set():
            with suppress(EngineAway):
                _proven(engine, config, target)
                return
            if not engine.alive():
                log = config.home() / "logs" / f"vllm-{config.eval_server().name}.log"
                raise PolicyError(f"eval.engine: vLLM does not start: {log}")
            self._stop.wait(LOOK_S)
        raise Stopped("the evaluator is stopping")


def _proven(engine: Loads, config: Config, target: Target) -> None:
    engine.load(target.checkpoint_id, target.path)
    if target.run_id is not None:
        probe = manifest.read(target.path).probe
        prove(engine, target.checkpoint_id, target.path, probe, config.model.dtype)


def _keep(engine: Loads, config: Config, target: Target, ended: threading.Event) -> None:
    """Load it again where the engine was started again and holds nothing."""
    while not ended.wait(LOOK_S):
        if target.checkpoint_id not in engine.names():
            with suppress(PolicyError):  # asked again; meanwhile its episodes wait for it
                _proven(engine, config, target)
