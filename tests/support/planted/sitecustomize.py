"""Four bugs, planted into every process of a run that a test starts; what ships knows of none.

Python imports `sitecustomize` at its start: this folder on PYTHONPATH and PLANTED, which names the
bug, make a build of the system that has it. A patch follows the import of the module it breaks.
A bug that shows only where two processes meet within a moment comes with that moment made longer.
"""

import copy
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HELD_S = 3.0  # between a claim and its body, an attempt's end and its word, a trainer's updates
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
        time.sleep(HELD_S)
        for message in other._publisher.kept:
            self._publisher.publish(*message)

    worker.EpisodeWorker._finish = claimed_first


def no_fence(episodes: Any) -> None:
    """An attempt that lost its row to a later one moves it all the same."""
    move, finish = episodes._move, episodes.finish

    def newest(session: Any, claimed: Any) -> Any:
        row = session.get(episodes.Episode, claimed.episode_id, populate_existing=True)
        return episodes.dataclasses.replace(claimed, fence=row.fence)

    def moved(session: Any, transition: Any, claimed: Any, values: Any) -> Any:
        return move(session, transition, newest(session, claimed), values)

    def finished(session: Any, claimed: Any, result: Any, **named: Any) -> Any:
        return finish(session, newest(session, claimed), result, **named)

    episodes._move, episodes.finish = moved, finished


def late_ends(worker: ModuleType) -> None:
    """Whoever stops a worker stops it with attempts that are over, and the next ones run long."""
    finish = worker.EpisodeWorker._finish

    def held(self: Any, *arguments: Any) -> None:
        time.sleep(HELD_S)
        finish(self, *arguments)

    worker.EpisodeWorker._finish = held


def no_epoch(updates: Any) -> None:
    """A trainer that was replaced commits."""
    updates._of_epoch = lambda run, _run_id, _epoch: run


def late_batches(inbox: ModuleType) -> None:
    """Whoever stops a trainer stops it between two updates, and ready groups are there for two."""
    next_groups = inbox.Inbox.next_groups

    def held(self: Any, version: int, epoch: int, stop: threading.Event, due: Any) -> Any:
        stop.wait(HELD_S)
        return next_groups(self, version, epoch, stop, due)

    inbox.Inbox.next_groups = held


def unbounded_retry(episodes: Any) -> None:
    """No attempt is the last."""
    retry = episodes.retry

    def retried(*arguments: Any, **named: Any) -> Any:
        return retry(*arguments, **named | {"max_attempts": NEVER})

    episodes.retry = retried


BUGS: dict[str, dict[str, Callable[[ModuleType], None]]] = {
    "claim_before_publish": {"workers.worker": claim_before_publish},
    "no_fence": {"db.episodes": no_fence, "workers.worker": late_ends},
    "no_epoch": {"db.updates": no_epoch, "trainer.inbox": late_batches},
    "unbounded_retry": {"db.episodes": unbounded_retry},
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
    for module, plant in BUGS[bug].items():
        sys.meta_path.insert(0, Planter(module, plant))
