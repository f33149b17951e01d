"""Chooses items of a split: some of them, or one by its id."""

from collections.abc import Sequence

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Item

GOLDEN_RATIO = (5**0.5 - 1) / 2  # its multiples, modulo 1, are spread evenly
ITEM_CHOICE = "golden ratio"  # of `sample_items`: another choice needs another name


def sample_items(items: Sequence[Item], count: int) -> list[Item]:
    """Return at most `count` items, spread evenly over all of them.

    The first items of a benchmark are often all of one kind. The choice is the same at each call,
    and a larger one contains a smaller one.
    """
    order = sorted(range(len(items)), key=lambda place: place * GOLDEN_RATIO % 1)
    return [items[place] for place in order[:count]]


def index_items(items: Sequence[Item]) -> dict[str, Item]:
    """Return the items by their ids. Raises ItemError for an id that repeats."""
    by_id: dict[str, Item] = {}
    for item in items:
        if by_id.setdefault(item.item_id, item) is not item:
            raise ItemError(
                f"task {item.task}: the id {item.item_id} occurs twice",
                hint="give each item an id of its own",
            )
    return by_id
