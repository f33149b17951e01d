"""What a purchase is worth: WebShop's reward (arXiv:2207.01206, section 3 and appendix A.5).

r = r_type · (attributes matched + options matched + price kept) / (attributes + options + 1)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.core.errors import ConfigError
from agentrl.envs.tasks.webshop.catalogue.product import Product
from agentrl.envs.tasks.webshop.goals import Goal
from agentrl.envs.tasks.webshop.nouns import nouns

MATCH = 85  # of a rounded token-set ratio; more is a match
NO_NOUNS = 0.2  # title overlap where the wanted title has no noun
_COLOURS_TEXT = (  # those that WebShop (MIT) folds shades into; the first that occurs counts
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown "
    "burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee "
    "cognac copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia "
    "gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender "
    "lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor "
    "mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red "
    "rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower "
    "tan taupe teal tiger turquoise violet walnut wheat white wine yellow"
)
COLOURS = tuple(_COLOURS_TEXT.split())
_OTHER = re.compile(r"\W")


@dataclass(frozen=True, slots=True)
class Worth:
    """Of one purchase. `type`: 1, 0.5, 0.1 or 0; the rest are counts; `reward` in [0, 1]."""

    type: float
    attributes: int
    options: int
    price: bool
    reward: float


def worth(product: Product, chosen: Mapping[str, str], goal: Goal) -> Worth:
    """Of a product bought with the options `chosen`, by kind."""
    kind = type_reward(product, goal)
    attributes = sum(_has(product, attribute) for attribute in goal.attributes)
    options = options_matched(goal.options, chosen.values())
    price = product.price <= goal.price_upper
    wanted = len(goal.attributes) + len(goal.options) + 1
    reward = kind * (attributes + options + price) / wanted
    return Worth(kind, attributes, options, price, reward)


def type_reward(product: Product, goal: Goal) -> float:
    """Is it the kind of thing that was wanted: by query, by two categories, by titles' nouns."""
    wanted = nouns(goal.title)
    common = set(wanted).intersection(nouns(product.title))
    overlap = len(common) / len(wanted) if wanted else NO_NOUNS  # repeated nouns count again
    if overlap == 0:
        return 0.0
    if overlap < 0.1:
        return 0.1
    path = _path(product.product_category) & _path(goal.product_category)
    alike = product.query == goal.query or len(path) >= 2 or overlap > 0.2
    return 1.0 if alike else 0.5


def options_matched(wanted: tuple[str, ...], chosen: Any) -> int:
    """How many wanted options are like a chosen one, shades of a colour being the same."""
    have = [colour(value) for value in chosen]
    return sum(any(alike(value, colour(want)) for value in have) for want in wanted)


def colour(text: str) -> str:
    """The first known colour in a text, else the text."""
    return next((name for name in COLOURS if name in text), text)


def alike(one: str, other: str) -> bool:
    """Is the token-set ratio of two texts, rounded, over 85?"""
    return round(token_set_ratio(_plain(one), _plain(other))) > MATCH


def token_set_ratio(one: str, other: str) -> float:
    """0 to 100. Raises ConfigError where rapidfuzz is not installed."""
    try:
        from rapidfuzz.fuzz import token_set_ratio as ratio
    except ImportError as error:
        raise ConfigError(
            "webshop: the reward needs rapidfuzz", hint="run `pip install 'agentrl-system[tasks]'`"
        ) from error
    return float(ratio(one, other))


def _has(product: Product, attribute: str) -> bool:
    if any(alike(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.features), product.description)
    return any(attribute in text.lower() for text in texts)


def _path(product_category: str) -> set[str]:
    return {part.strip() for part in product_category.split("›")}


def _plain(text: str) -> str:
    """ASCII only, lower-cased, everything but letters, digits and _ a space."""
    return _OTHER.sub(" ", text.encode("ascii", "ignore").decode()).lower().strip()
