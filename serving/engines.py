"""The engines that `policy.engine` may name, and what they take of a configuration.

An engine is a folder or file of this package; it is imported when it is wanted. A model of somebody
else, `external`, is none: it holds no checkpoint (serving/external/engine.py).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from agentrl.core.config import Lora, Model, PolicyServer
from agentrl.core.errors import require_known
from agentrl.serving.checkpoint_loader import Loads

EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """What policy servers and engines take of a configuration.

    `home`: the run's folder; `cache`: of fetched checkpoints; `seed`: the run's. `metrics`: whether
    those of a program that an engine starts are asked for.
    """

    model: Model
    lora: Lora
    home: Path
    cache: Path
    seed: int
    completion_timeout_s: float
    metrics: bool


Make = Callable[[ServingConfig, PolicyServer, threading.Event], Loads]


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """Where an engine is, each as MODULE:FUNCTION.

    `make`: the engine of a server; its event is set when the process is to end. `check`: raises
    ConfigError for a server that cannot be, before a run begins; imports nothing heavy.
    """

    make: str
    check: str = ""


ENGINES = {
    "local": EngineEntry("agentrl.serving.local.engine:make"),
    "vllm": EngineEntry(
        "agentrl.serving.vllm.engine:VllmEngine", check="agentrl.serving.vllm.launch:check_tracks"
    ),
    "scripted": EngineEntry("agentrl.serving.scripted:make"),
}


def make_engine(config: ServingConfig, server: PolicyServer, stop: threading.Event) -> Loads:
    """The engine that a server names.

    stop: set when the process is to end, whatever the engine waits for. Raises ConfigError.
    """
    require_known("policy.engine", server.engine, ENGINES)
    make: Make = _named(ENGINES[server.engine].make)
    return make(config, server, stop)


def check_engine(config: ServingConfig, server: PolicyServer) -> None:
    """Raise ConfigError for an engine that does not exist, or cannot do what its server asks."""
    require_known("policy.engine", server.engine, [*ENGINES, EXTERNAL])
    entry = ENGINES.get(server.engine)
    if entry is not None and entry.check:
        _named(entry.check)(config, server)


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
