"""Chooses some items of a split."""

from collections.abc import Sequence

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
