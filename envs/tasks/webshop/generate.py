"""A made-up catalogue from a seed, and goals in it.

Each has a price bound. easy: two attributes · medium: and an option · hard: three and two options
"""

from collections.abc import Iterator
from functools import lru_cache
from random import Random

import msgspec

from agentrl.envs.tasks.generated import Drawn
from agentrl.envs.tasks.options import Difficulty
from agentrl.envs.tasks.webshop.catalogue.catalogue import MemoryCatalogue
from agentrl.envs.tasks.webshop.catalogue.product import Product
from agentrl.envs.tasks.webshop.goals import Goal, option_words, price_bound, price_words
from agentrl.envs.tasks.webshop.product_words import BRANDS, CHOICES, COLOURS, KINDS, Kind

MAX_PRODUCTS = 5_000
MIN_PRICE, MAX_PRICE = 5, 89  # dollars
HELD = 3  # attributes of a product
WANTED: dict[Difficulty, tuple[int, int]] = {"easy": (2, 0), "medium": (2, 1), "hard": (3, 2)}


@lru_cache(maxsize=4)
def catalogue(seed: int, products: int) -> MemoryCatalogue:
    """The same products in every process, made once in each."""
    return MemoryCatalogue(_products(Random(f"webshop {seed}"), products))


def draw(difficulty: Difficulty, seed: int, products: int, random: Random, number: int) -> Drawn:
    """An item's content, and its question; None where no bound lies above the product's price."""
    del number
    shop = catalogue(seed, products)
    product = random.choice(shop.products)
    bound = price_bound(product.price, random)
    if bound is None:
        return None
    attributes, options = WANTED[difficulty]
    wanted = tuple(random.sample(product.attributes, attributes))
    kinds = random.sample(sorted(product.options), options)
    chosen = {kind: random.choice(product.options[kind]) for kind in sorted(kinds)}
    text = f"Find me {', '.join(wanted)} {product.query}" + option_words(chosen)
    named = "".join(f", {kind} {value}" for kind, value in chosen.items())
    goal = Goal(
        asin=product.asin,
        instruction=text + price_words(bound),
        attributes=wanted,
        options=tuple(chosen.values()),
        price_upper=bound,
        query=product.query,
        product_category=product.product_category,
        title=product.title,
        short=f"{' '.join(wanted)} {product.query}{named}, under {bound:.0f}",
    )
    content = {"catalogue": f"{seed} {products}", "digest": shop.digest, "goal": goal}
    return msgspec.to_builtins(content), goal.instruction


def _products(random: Random, count: int) -> Iterator[Product]:
    for number in range(count):
        yield _product(random, KINDS[number % len(KINDS)], f"B{number:04d}")


def _product(random: Random, kind: Kind, asin: str) -> Product:
    attributes = tuple(random.sample(kind.attributes, HELD))
    brand = random.choice(BRANDS.split())
    options = {
        "color": tuple(random.sample(COLOURS, random.randint(2, 4))),
        kind.choices: tuple(random.sample(CHOICES[kind.choices], 2)),
    }
    return Product(
        asin=asin,
        title=f"{brand} {kind.name}, {', '.join(attributes)}",
        prices=(float(random.randint(MIN_PRICE, MAX_PRICE)),),
        category=kind.category,
        query=kind.query,
        product_category=kind.path,
        description=f"A {attributes[0]} {kind.name} by {brand}. One of our {kind.query}.",
        features=tuple(f"{attribute.capitalize()} {kind.name}." for attribute in attributes),
        options=options,
        attributes=attributes,
    )
