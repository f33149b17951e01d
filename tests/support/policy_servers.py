"""Real policy servers over HTTP, and an environment whose replies are set in advance."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentrl.core.types import Status
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.envs.contract import (
    Environment,
    Expert,
    Item,
    Message,
    Observation,
    Outcome,
    Tool,
    ToolCall,
    strings,
)
from agentrl.serving.checkpoint_loader import LoadingEngine
from agentrl.serving.served_checkpoints import ServedCheckpoints
from agentrl.serving.server import PolicyApp, Server

CLAIMED = ClaimedEpisode("e", "g", 0, "talk", "item", 1, 1)
LOOK = strings("look", "Look at a thing.", "thing")


@contextmanager
def serve(engine: LoadingEngine, checkpoints: Mapping[str, tuple[str, Path]]) -> Iterator[Server]:
    """A policy server for {checkpoint_id: (track, directory)}, on a port of its own."""
    served = ServedCheckpoints()
    for version, (name, (track, path)) in enumerate(checkpoints.items()):
        engine.load(name, path)
        served.serve(track, name, version)
    server = Server(PolicyApp(engine, served, ""), "127.0.0.1", 0, guarded=False)
    try:
        yield server
    finally:
        server.close()
        engine.close()


class FixedPool:
    """A pool with fixed policies."""

    def __init__(self, *policies: LivePolicy) -> None:
        self.policies: Sequence[LivePolicy] = policies

    def live(self) -> Sequence[LivePolicy]:
        return self.policies

    def refresh(self, timeout_s: float = 1.0) -> None:
        """Nothing changes by looking."""


class ScriptedEnvironment:
    """Answers every turn with the next of its answers; what follows the last ends the episode."""

    def __init__(
        self, answers: Sequence[str], end: Outcome | Exception, *, reward: float = 0.0
    ) -> None:
        """`reward`: of each turn before the end."""
        self.closed = 0
        self._answers = list(answers)
        self._end = end
        self._reward = reward

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (LOOK,)

    def start(self) -> Observation:
        return Observation((Message("system", "talk"), Message("user", "which mug?")))

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if self._answers:
            role = "user" if isinstance(calls, str) else "tool"
            return Outcome((Message(role, self._answers.pop(0)),), reward=self._reward)
        if isinstance(self._end, Exception):
            raise self._end
        return self._end

    def close(self) -> None:
        self.closed += 1


class ScriptedSource:
    """A TaskSource whose environments the given function makes."""

    name = "talk"
    max_turns = 8
    splits = ("train",)

    def __init__(self, make: Callable[[Item], Environment]) -> None:
        self._make = make

    def items(self, split: str) -> Sequence[Item]:
        return [Item("talk", f"{split}-item-{number}", {}) for number in range(4)]

    def make(self, item: Item) -> Environment:
        return self._make(item)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        raise NotImplementedError


def won(reward: float = 1.0) -> Outcome:
    return Outcome((), done=True, status=Status.COMPLETED, reward=reward, score=reward)
