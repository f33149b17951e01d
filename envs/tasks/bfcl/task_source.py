"""The task source: items and their environments."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Environment, Expert, Item, Recovery
from agentrl.envs.tasks import generated, options
from agentrl.envs.tasks.bfcl import datasets
from agentrl.envs.tasks.bfcl.environment import BfclEnvironment
from agentrl.envs.tasks.bfcl.expert import BfclExpert
from agentrl.envs.tasks.bfcl.generate import draw
from agentrl.envs.tasks.bfcl.package import backend
from agentrl.envs.tasks.bfcl.problem import Problem


class Options(options.Generated, frozen=True, forbid_unknown_fields=True):
    """`origin`: `v4` for the benchmark's own items."""

    origin: Literal["generated", "v4"] = "generated"


class BfclSource(generated.SplitSource):
    """A TaskSource."""

    name = "bfcl"
    max_turns = 60
    recovery: Recovery = "replayable"

    def __init__(self, given: Mapping[str, Any]) -> None:
        """Raises ItemError, also where the package bfcl-eval is not installed."""
        self._options = options.parse(self.name, Options, given)
        backend()
        draw_item = partial(draw, self._options.difficulty)
        self._splits = (
            generated.Splits(self.name, self._options, draw_item)
            if self._options.origin == "generated"
            else generated.LoadedSplits(self.name, datasets.SPLITS, datasets.published_items)
        )

    def make(self, item: Item) -> Environment:
        return BfclEnvironment(_playable(item), self._options.style)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        return BfclExpert(_playable(item), seed=seed, noise=noise)


def _playable(item: Item) -> Problem:
    """Raises ItemError."""
    found = options.read(item, Problem)
    if not found.requests:
        raise ItemError(f"item {item.item_id}: there is no request")
    return found
