"""A bug, planted into every process of a run that a test starts; what ships knows nothing of it.

Python imports `sitecustomize` at its start: this folder on PYTHONPATH makes a build of the system
that claims an episode before it publishes the body. The patch follows the import of the module.
"""

import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HELD_S = 3.0  # between a claim and its body


class Later:
    """A publisher that keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, ...]] = []

    def publish(self, *message: Any, **_waiting: Any) -> None:
        self.kept.append(message)


def claim_before_publish(settlement: ModuleType) -> None:
    """The row says finished before the broker holds the body."""
    finish = settlement.Settlement.finish

    def claimed_first(self: Any, *arguments: Any) -> str:
        publisher = Later()
        ended: str = finish(dataclasses.replace(self, publisher=publisher), *arguments)
        time.sleep(HELD_S)
        for message in publisher.kept:
            self.publisher.publish(*message)
        return ended

    settlement.Settlement.finish = claimed_first


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


sys.meta_path.insert(0, Planter("agentrl.workers.settlement", claim_before_publish))
