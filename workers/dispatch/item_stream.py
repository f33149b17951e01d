"""The item at each position of a task's stream: a pure function, so a restart loses nothing."""

import random
from collections.abc import Mapping, Sequence

from agentrl.envs.contract import Item
from agentrl.envs.item_choice import index_items


class ItemStream:
    """The items of one task, shuffled again for each pass through the split."""

    def __init__(self, items: Sequence[Item], seed: int) -> None:
        """Raises ItemError for an id that repeats."""
        self._items = items
        self._seed = seed
        self._orders: dict[int, list[int]] = {}
        self.by_id: Mapping[str, Item] = index_items(items)

    def __len__(self) -> int:
        """Return the number of items in one pass."""
        return len(self._items)

    def at(self, position: int) -> Item:
        """Return the item at a position ≥ 0."""
        epoch, place = divmod(position, len(self._items))
        return self._items[self._order(epoch)[place]]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            order = list(range(len(self._items)))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._orders = {epoch: order}
        return self._orders[epoch]
