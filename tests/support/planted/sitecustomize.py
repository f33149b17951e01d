"""Two bugs, planted into every process of a run that a test starts; what ships knows of none.

Python imports `sitecustomize` at its start: this folder on PYTHONPATH and PLANTED, which names the
bug, make a build of the system that has it. The patch follows the import of the module it breaks.
"""

import copy
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

WIDER_S = 1.0  # between the claim and its body: where a kill loses it
NEVER = 1_000_000_000


class Later:
    """A publisher that keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, ...]] = []

    def publish(self, *message: Any) -> None:
        self.kept.append(message)


def claim_before_publish(worker: ModuleType) -> None:
    """The row says finished before the broker holds the body."""
    finish = worker.EpisodeWorker._finish

    def claimed_first(self: Any, *arguments: Any) -> None:
        other = copy.copy(self)
        other._publisher = Later()
        finish(other, *arguments)
        time.sleep(WIDER_S)
        for message in other._publisher.kept:
            self._publisher.publish(*message)

    worker.EpisodeWorker._finish = claimed_first


def unbounded_retry(episodes: ModuleType) -> None:
    """No attempt is the last."""
    retry = episodes.retry

    def retried(*arguments: Any, **named: Any) -> Any:
        return retry(*arguments, **named | {"max_attempts": NEVER})

    episodes.retry = retried


BUGS: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "claim_before_publish": ("workers.worker", claim_before_publish),
    "unbounded_retry": ("db.episodes", unbounded_retry),
}


class Planter(MetaPathFinder):
    """Breaks one module once it is imported."""

    def __init__(self, module: str, plant: Callable[[ModuleType], None]) -> None:
        self._module, self._plant = module, plant

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def planted(module: ModuleType) -> None:
            execute(module)
            self._plant(module)

        spec.loader.exec_module = planted  # type: ignore[method-assign]
        return spec


if bug := os.environ.get("PLANTED"):
    sys.meta_path.insert(0, Planter(*BUGS[bug]))
