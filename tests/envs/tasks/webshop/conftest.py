"""A small shop made by hand, and the benchmark's sample where this machine has it."""

import pytest

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.webshop.catalogue.catalogue import MemoryCatalogue
from agentrl.envs.tasks.webshop.catalogue.product import Product, Review
from agentrl.envs.tasks.webshop.datasets import sample
from agentrl.envs.tasks.webshop.goals import Goal

LAMP = Product(
    asin="B01",
    title="Acme Desk Lamp with Red Shade",
    prices=(24.5,),
    category="garden",
    query="desk lamps",
    product_category="Home › Lighting › Lamps",
    description="A lamp that folds.",
    features=("Dimmable light", "Easy clean"),
    options={"color": ("crimson red", "navy blue"), "size": ("small", "large")},
    attributes=("energy saving", "easy install"),
)
CHAIR = Product(
    asin="B02",
    title="Bolt Office Chair",
    prices=(10.0, 30.0),
    category="garden",
    query="office chairs",
    product_category="Home › Furniture › Chairs",
    attributes=("high back",),
    reviews=(Review("Fine", "4", "It stands."),),
)
GOAL = Goal(
    asin="B01",
    instruction="Find me energy saving desk lamps",
    attributes=("energy saving",),
    options=("red", "small"),
    price_upper=30.0,
    query="desk lamps",
    product_category="Home › Lighting › Lamps",
    title="Acme Desk Lamp with Red Shade",
    short="energy saving desk lamps, red, small, under 30",
)


@pytest.fixture
def shop_goal() -> Goal:
    return GOAL


@pytest.fixture
def small() -> MemoryCatalogue:
    return MemoryCatalogue([LAMP, CHAIR])


@pytest.fixture(scope="session")
def sample_catalogue() -> MemoryCatalogue:
    try:
        return sample()
    except ItemError as error:
        pytest.skip(str(error))
