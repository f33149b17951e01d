"""What a shopper wants: the benchmark's goals, in its order.

The original draws price bounds before it seeds its generator, so they differ in every process; here
each goal's bound is drawn by the product's id. The order of goals is the original's: as the
catalogue, then shuffled with seed 233.
"""

import itertools
from collections.abc import Iterable, Iterator
from random import Random

import msgspec

from agentrl.envs.tasks.webshop.catalogue.product import HumanGoal, Product

SHUFFLE_SEED = 233
BOUNDS = tuple(10.0 * step for step in range(1, 100))  # dollars
NO_BOUND = 1_000_000.0
NEAREST_BOUNDS = 4


class Goal(msgspec.Struct, frozen=True):
    """`instruction`: what the agent reads; `price_upper`: dollars; `short`: for compact prompts.

    The rest is what a purchase is held against: attributes, options, and the wanted product's
    query, categories and title.
    """

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float
    query: str
    product_category: str
    title: str
    short: str = ""


def human_goals(products: Iterable[Product]) -> list[Goal]:
    """One for each wish of a person that names attributes, shuffled."""
    return _shuffle(
        _goal(
            product,
            human_goal.text.strip("."),
            human_goal.attributes,
            human_goal.options or (),
            place,
        )
        for product in products
        for place, human_goal in enumerate(product.wishes)
        if human_goal.attributes
    )


def synthetic_goals(products: Iterable[Product]) -> list[Goal]:
    """One for each combination of options of a product with a template, shuffled."""
    return _shuffle(
        goal
        for product in products
        if product.template is not None
        for goal in _combinations(product, product.template)
    )


def price_bound(price: float, random: Random) -> float | None:
    """The larger of two of the four bounds next above a price; None where there are no two."""
    above = [bound for bound in BOUNDS if bound > price][:NEAREST_BOUNDS]
    return max(random.sample(above, 2)) if len(above) >= 2 else None


def price_words(bound: float | None) -> str:
    return "" if bound is None else f", and price lower than {bound:.2f} dollars"


def option_words(options: dict[str, str]) -> str:
    named = ", and ".join(f"{kind}: {value}" for kind, value in options.items())
    return f" with {named}" if named else ""


def _combinations(product: Product, template: HumanGoal) -> Iterator[Goal]:
    kinds = sorted(product.options)
    for values in itertools.product(*(product.options[kind] for kind in kinds)):
        options = dict(zip(kinds, values, strict=True))
        text = template.text + option_words(options)
        yield _goal(product, text, template.attributes, values, 0)


def _goal(
    product: Product,
    text: str,
    attributes: tuple[str, ...],
    options: tuple[str, ...],
    place: int,
) -> Goal:
    bound = price_bound(product.price, Random(f"webshop bound {product.asin} {place}"))
    return Goal(
        asin=product.asin,
        instruction=text + price_words(bound),
        attributes=attributes,
        options=options,
        price_upper=NO_BOUND if bound is None else bound,
        query=product.query,
        product_category=product.product_category,
        title=product.title,
    )


def _shuffle(goals: Iterable[Goal]) -> list[Goal]:
    found = list(goals)
    Random(SHUFFLE_SEED).shuffle(found)
    return found
