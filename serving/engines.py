"""The registry of inference engines (`policy.engine`), and their part of the configuration.

An engine is a folder or file of this package and is imported when it is used. `external` is not in
the registry, because it holds no checkpoint (serving/external/engine.py).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from agentrl.core.config.sections.policies import Model, PolicyServer
from agentrl.core.config.sections.training import Lora
from agentrl.core.errors import require_known
from agentrl.serving.checkpoint_loader import LoadingEngine

EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """The part of a configuration that policy servers and engines get.

    `home`: the run's folder. `cache`: folder of downloaded checkpoints. `seed`: the run's.
    `metrics`: whether metrics of programs that an engine starts are exported.
    """

    model: Model
    lora: Lora
    home: Path
    cache: Path
    seed: int
    completion_timeout_s: float
    metrics: bool


Make = Callable[[ServingConfig, PolicyServer, threading.Event], LoadingEngine]


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """The functions of an engine, each as MODULE:FUNCTION.

    `make`: creates the engine of a server; its event is set when the process shall end. `check`:
    raises ConfigError for a wrong server before a run begins; imports nothing heavy.
    """

    make: str
    check: str = ""


ENGINES = {
    "local": EngineEntry("agentrl.serving.local.engine:make"),
    "vllm": EngineEntry(
        "agentrl.serving.vllm.engine:VllmEngine", check="agentrl.serving.vllm.launch:check_server"
    ),
    "scripted": EngineEntry("agentrl.serving.scripted:make"),
}


def make_engine(
    config: ServingConfig, server: PolicyServer, stop: threading.Event
) -> LoadingEngine:
    """Create the engine of a server. stop: the process shall end. Raises ConfigError."""
    require_known("policy.engine", server.engine, ENGINES)
    make: Make = _named(ENGINES[server.engine].make)
    return make(config, server, stop)


def check_engine(config: ServingConfig, server: PolicyServer) -> None:
    """Raise ConfigError if the engine does not exist or does not support its server's settings."""
    require_known("policy.engine", server.engine, [*ENGINES, EXTERNAL])
    entry = ENGINES.get(server.engine)
    if entry is not None and entry.check:
        _named(entry.check)(config, server)


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
