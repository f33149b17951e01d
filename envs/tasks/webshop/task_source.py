"""The task source: items and their environments."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentrl.core.errors import ItemError
from agentrl.envs.contract import Environment, Expert, Item, Recovery
from agentrl.envs.tasks import datasets, generated, options
from agentrl.envs.tasks.webshop import goals
from agentrl.envs.tasks.webshop.catalogue.catalogue import Catalogue, is_built, open_folder
from agentrl.envs.tasks.webshop.compact_page import COMPACT_PAGE
from agentrl.envs.tasks.webshop.datasets import AGENTBENCH, SAMPLE, sample
from agentrl.envs.tasks.webshop.environment import WebshopEnvironment
from agentrl.envs.tasks.webshop.expert import WebshopExpert
from agentrl.envs.tasks.webshop.generate import MAX_PRODUCTS, catalogue, draw
from agentrl.envs.tasks.webshop.goals import Goal
from agentrl.envs.tasks.webshop.shop import PAGE, Shop

TEST = slice(0, 200)  # goals of the benchmark's splits, by place in the shuffled list
TRAIN = slice(1000, 12000)
FEW = 1200  # goals; where there are fewer, the first fifth is the test split
INDEX = "webshop/index"  # in the data folder


class Options(options.Generated, frozen=True, forbid_unknown_fields=True):
    """`origin`: of products and goals. `products`: how many are generated.

    `goals`: of people or from templates; empty for the origin's own (sample: synthetic, agentbench:
    human). `data`: the data folder, else AGENTRL_DATA; `index`: folder of the built catalogue, else
    webshop/index in it. `attributes`: products have a sub-page of them.
    """

    origin: Literal["generated", "sample", "agentbench"] = "generated"
    goals: Literal["", "human", "synthetic"] = ""
    data: str = ""
    index: str = ""
    products: Annotated[int, Meta(ge=24, le=MAX_PRODUCTS)] = 1000
    attributes: bool = False


class Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of an item. `catalogue`: a dataset's name, or seed and size of a generated one."""

    catalogue: str
    digest: str
    goal: Goal


class WebshopSource(generated.SplitSource):
    """A TaskSource of generated goals, or of a dataset's."""

    name = "webshop"
    max_turns = 20
    recovery: Recovery = "replayable"

    def __init__(self, raw_options: Mapping[str, Any]) -> None:
        settings = options.parse(self.name, Options, raw_options)
        if settings.origin == AGENTBENCH.name and settings.goals == "synthetic":
            raise ItemError("webshop: origin agentbench has goals of people only")
        self._options = settings
        draw_item = partial(draw, settings.difficulty, settings.seed, settings.products)
        self._splits = (
            generated.Splits(self.name, settings, draw_item)
            if settings.origin == "generated"
            else generated.LoadedSplits(
                self.name, generated.SPLITS, lambda split: self._imported[split]
            )
        )

    def make(self, item: Item) -> Environment:
        return WebshopEnvironment(self.visit(item), self._options.style)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        shown = options.read(item, Content).catalogue in (SAMPLE.name, AGENTBENCH.name)
        return WebshopExpert(self.visit(item), shown=shown, seed=seed, noise=noise)

    def visit(self, item: Item) -> Shop:
        """A fresh visit to the item's shop. Raises ItemError."""
        content = options.read(item, Content)
        catalogue = self._catalogue(item.item_id, content.catalogue)
        if catalogue.digest != content.digest:
            raise ItemError(f"item {item.item_id}: of another catalogue than {content.catalogue}")
        size = COMPACT_PAGE if self._options.style == "compact" else PAGE
        return Shop(catalogue, content.goal, size, self._options.attributes)

    def _catalogue(self, item_id: str, name: str) -> Catalogue:
        """Raises ItemError."""
        if name == SAMPLE.name:
            return sample(self._options.data)
        if name == AGENTBENCH.name:
            return open_folder(self._index())
        seed, _, products = name.partition(" ")
        if not (seed.lstrip("-").isdecimal() and products.isdecimal()):
            raise ItemError(f"item {item_id}: unknown catalogue {name}")
        if not 0 < int(products) <= MAX_PRODUCTS:
            raise ItemError(f"item {item_id}: a catalogue has up to {MAX_PRODUCTS} products")
        return catalogue(int(seed), int(products))

    def _index(self) -> Path:
        """Of the catalogue; MissingDataset where neither it nor what it is built from is there."""
        if self._options.index:
            return Path(self._options.index)
        root = datasets.folder(self._options.data)
        if root is None or not is_built(root / INDEX):
            root = datasets.locate(AGENTBENCH, self._options.data)
        return root / INDEX

    @cached_property
    def _imported(self) -> dict[str, tuple[Item, ...]]:
        origin = self._options.origin
        if origin == SAMPLE.name:
            shop: Catalogue = sample(self._options.data)
            make = goals.human_goals if self._options.goals == "human" else goals.synthetic_goals
            all_goals = make(sample(self._options.data).products)
        else:
            shop = open_folder(self._index())
            all_goals = open_folder(self._index()).goals()
        test, train = split_goals(len(all_goals))
        known = {all_goals[place] for place in test}
        train = [place for place in train if all_goals[place] not in known]  # one asked twice
        return {
            name: tuple(
                self._item(origin, shop.digest, place, all_goals[place]) for place in places
            )
            for name, places in (("test", test), ("train", train))
        }

    def _item(self, origin: str, digest: str, place: int, goal: Goal) -> Item:
        content = Content(origin, digest, goal)
        return Item(self.name, f"{origin}-{place}", msgspec.to_builtins(content))


def split_goals(count: int) -> tuple[Sequence[int], Sequence[int]]:
    """The places of the test split and of the train split among `count` goals."""
    places = range(count)
    if count < FEW:
        return places[: count // 5], places[count // 5 :]
    return places[TEST], places[TRAIN]
