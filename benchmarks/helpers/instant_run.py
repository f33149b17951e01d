"""A run whose environment answers at once or after a pause, always for five turns."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from agentrl.checkpoints import manifest
from agentrl.core.types import CheckpointState, RunState, Status
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint
from agentrl.db.store import Store, now
from agentrl.envs.contract import Item, Message, Observation, Outcome, Tool, ToolCall, strings
from agentrl.serving.engine_api import Completion, Request
from agentrl.serving.scripted import ScriptedEngine, limits_of

TURNS, ITEMS = 5, 1_000
LOOK = strings("look", "Look at a thing.", "thing")


class Instant:
    """Five turns, whatever the agent says; every other episode succeeds."""

    tools: tuple[Tool, ...] = (LOOK,)

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._left = TURNS
        self._won = uuid.uuid4().int % 2

    def start(self) -> Observation:
        return Observation((Message("user", "Look around."),))

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:  # noqa: ARG002 - the contract's
        time.sleep(self._pause_s)
        self._left -= 1
        if self._left:
            return Outcome((Message("tool", "A table, a lamp and a book.", "look"),))
        reward = float(self._won)
        return Outcome((), done=True, status=Status.COMPLETED, reward=reward, score=reward)

    def close(self) -> None:
        """Nothing is held."""


class InstantSource:
    """A thousand equal items."""

    name = "instant"
    max_turns = TURNS

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def items(self, split: str) -> list[Item]:  # noqa: ARG002 - the contract's
        return [Item(self.name, f"item-{n}", {}) for n in range(ITEMS)]

    def make(self, item: Item) -> Instant:  # noqa: ARG002 - the contract's
        return Instant(self._pause_s)


class SlowEngine(ScriptedEngine):
    """A policy that answers after `wait_s`, without a thread for it; `steps` counts (shared)."""

    def __init__(self, model: str, wait_s: float, steps: Any) -> None:
        super().__init__(limits=limits_of(Path(model)))
        self._wait_s = wait_s
        self._steps = steps

    def submit(self, request: Request) -> "Future[Completion]":
        answer = super().submit(request).result()
        future: Future[Completion] = Future()
        future.set_running_or_notify_cancel()
        asyncio.get_running_loop().call_later(self._wait_s, future.set_result, answer)
        with self._steps.get_lock():
            self._steps.value += 1
        return future


def begin(store: Store, home: Path) -> str:
    """A run with its first checkpoint, which has the run's id."""
    run_id = f"bench-{uuid.uuid4().hex[:8]}"
    with store.write() as session:
        session.add(
            Run(
                run_id=run_id,
                name=run_id,
                config="",
                seed=0,
                state=RunState.RUNNING,
                created_at=now(),
            )
        )
    add_checkpoint(store, run_id, home / run_id, 0)
    return run_id


def add_checkpoint(store: Store, run_id: str, path: Path, version: int) -> None:
    """A checkpoint without weights, named after its directory."""
    path.mkdir(parents=True)
    (path / "weights").write_bytes(b"none")
    manifest.write(path, manifest.Manifest(path.name, version, None, manifest.digests(path)))
    row = Checkpoint(
        checkpoint_id=path.name,
        run_id=run_id,
        version=version,
        path=str(path),
        state=CheckpointState.LIVE,
        created_at=now(),
    )
    with store.write() as session:
        session.add(row)
