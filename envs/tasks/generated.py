"""Generates seeded items in two splits without overlap.

The hash of an item's question and answer decides its split, independent of the seed. So training
items of one seed never appear among the evaluation items of another.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Item, require_split
from agentrl.envs.tasks.options import Generated

SPLITS = ("train", "test")
TEST_SHARE = 5  # one key in so many belongs to the test split
MAX_DRAWS = 500  # per item wanted, before the space of items counts as exhausted

Drawn = tuple[Mapping[str, Any], str] | None
"""The content of an item, and the key of its question and answer; None: no proper item."""
Draw = Callable[[Random, int], Drawn]
"""Draws the item of a number."""


class LoadedSplits:
    """The items of a task's splits, each loaded at the first request."""

    def __init__(
        self, task: str, names: Iterable[str], load: Callable[[str], Sequence[Item]]
    ) -> None:
        """`load`: returns the items of a split of `names`."""
        self.names = tuple(names)
        self._task, self._load = task, load
        self._items: dict[str, tuple[Item, ...]] = {}

    def items(self, split: str) -> tuple[Item, ...]:
        """Return the items of a split. Raises ItemError, also for an unknown split."""
        if split not in self._items:
            require_split(self._task, split, self.names)
            self._items[split] = tuple(self._load(split))
        return self._items[split]


class Splits(LoadedSplits):
    """The splits of generated items."""

    def __init__(self, task: str, options: Generated, draw: Draw) -> None:
        super().__init__(task, SPLITS, lambda split: generate(task, split, options, draw))


class SplitSource:
    """The part of a TaskSource that gives its items. Its `__init__` sets `_splits`."""

    _splits: LoadedSplits

    @property
    def splits(self) -> tuple[str, ...]:
        return self._splits.names

    def items(self, split: str) -> Sequence[Item]:
        return self._splits.items(split)


def generate(task: str, split: str, options: Generated, draw: Draw) -> tuple[Item, ...]:
    """Generate a split's items: a pure function of seed, difficulty and split.

    Raises ItemError for an unknown split, and where there are not as many items as asked for.
    """
    require_split(task, split, SPLITS)
    wanted = options.items if split == "train" else options.test_items
    random = Random(f"{task} {options.seed} {options.difficulty} {split}")
    items: dict[str, Item] = {}
    for _ in range(MAX_DRAWS * wanted):
        if len(items) == wanted:
            break
        drawn = draw(random, len(items))
        if drawn and split_of(drawn[1]) == split:
            item_id = f"{options.difficulty}-{_digest(json.dumps(drawn[0], sort_keys=True))}"
            items.setdefault(item_id, Item(task, item_id, drawn[0]))
    if len(items) < wanted:
        raise ItemError(
            f"{task}: split {split} has {len(items)} items instead of {wanted}",
            hint="lower the options items and test_items",
        )
    return tuple(items.values())


def seed_items(task: str, split: str, wanted: int, stream: str) -> tuple[Item, ...]:
    """`wanted` items whose content is a seed; the text `stream` decides which. Raises ItemError."""
    require_split(task, split, SPLITS)
    random, seeds = Random(stream), dict[int, None]()
    while len(seeds) < wanted:
        seed = random.getrandbits(31)
        if split_of(str(seed)) == split:
            seeds[seed] = None
    return tuple(Item(task, str(seed), {"seed": seed}) for seed in seeds)


def split_of(key: str) -> str:
    """Return the split of every item with this question and answer."""
    return "test" if int(_digest(key), 16) % TEST_SHARE == 0 else "train"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
