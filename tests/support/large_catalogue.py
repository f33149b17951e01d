"""A made-up catalogue of any size, as texts of real shops are: for measurements.

Lengths and shares follow the 1,000 products of the sample: titles of about 17 words, 124 words in
all with a long tail, a third of them repeated, 42 % of products with options. Words follow Zipf and
Mandelbrot's law over a million forms, a quarter are English stop words, and every other title holds
a model number of its own.
"""

from collections.abc import Iterator
from functools import cache
from itertools import islice
from random import Random

import numpy as np
from numpy.typing import NDArray

from agentrl.envs.tasks.webshop.catalogue.product import Product
from agentrl.envs.tasks.webshop.catalogue.search import STOP_WORDS
from agentrl.envs.tasks.webshop.product_words import CHOICES, COLOURS, KINDS

FORMS, OFFSET = 1_000_000, 10  # distinct words; Mandelbrot's offset
STOP_SHARE = 0.25
BLOCK = 10_000
TITLE = 17
BODY_MEDIAN, BODY_SPREAD = 105.0, 0.85  # words of description and features: log-normal
FRESH = 0.6  # of a body are drawn for it; the rest repeat its words and the title's
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


class Lexicon:
    """The word forms, drawn by rank. Memory: the forms that were drawn."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        weights = 1.0 / (np.arange(FORMS) + OFFSET)
        self._ends = np.cumsum(weights / weights.sum())
        self._stop = sorted(STOP_WORDS)

    def draw(self, count: int) -> list[str]:
        """Words of running text."""
        ranks: NDArray[np.int64] = np.searchsorted(self._ends, self._random.random(count))
        stops = self._random.random(count) < STOP_SHARE
        ranks[stops] = -1 - self._random.integers(len(self._stop), size=int(stops.sum()))
        return [form(rank) if rank >= 0 else self._stop[-1 - rank] for rank in ranks.tolist()]

    def lengths(self, count: int) -> NDArray[np.int64]:
        """Words of bodies of text."""
        normal = self._random.standard_normal(count)
        words: NDArray[np.float64] = np.exp(np.log(BODY_MEDIAN) + BODY_SPREAD * normal) + 3
        return words.astype(np.int64)


@cache
def form(rank: int) -> str:
    """A pronounceable word of its own for each rank; frequent ones are short."""
    letters = []
    rank += 70
    while rank:
        rank, syllable = divmod(rank, 70)
        letters.append(_CONSONANTS[syllable % 14] + _VOWELS[syllable // 14])
    return "".join(letters)


def products(count: int, seed: int = 0) -> Iterator[Product]:
    """The first `count` products of a seed."""
    lexicon, random = Lexicon(seed), Random(seed)
    for first in range(0, count, BLOCK):
        lengths = lexicon.lengths(min(BLOCK, count - first))
        words = iter(lexicon.draw(int(lengths.sum()) + TITLE * len(lengths)))
        for number, length in enumerate(lengths.tolist(), first):
            title = [next(words) for _ in range(TITLE)]
            fresh = [next(words) for _ in range(int(FRESH * length))]
            body = [*fresh, *random.choices(title + fresh, k=length - len(fresh))]
            yield _product(number, title, body, random)


def queries(count: int, seed: int = 1) -> list[str]:
    """Searches as agents write them: half a product's title, common words and a price."""
    common = [form(rank) for rank in range(200)]
    random, found = Random(seed), []
    for product in islice(products(count), count):
        words = random.sample(product.title.split(), TITLE // 2) + random.sample(common, 3)
        price = f"price lower than {random.randrange(10, 100)}.00 dollars"
        found.append(" ".join([*words, price]))
    return found


def _product(number: int, title: list[str], body: list[str], random: Random) -> Product:
    kind = KINDS[number % len(KINDS)]
    options: dict[str, tuple[str, ...]] = {}
    if random.random() < 0.42:
        options["color"] = tuple(random.sample(COLOURS, 4))
    if random.random() < 0.2:
        options[kind.choices] = CHOICES[kind.choices]
    if number % 2:
        title = [*title, f"{form(number % 97)}{number}"]
    third = len(body) // 3
    features = (" ".join(body[third : 2 * third]), " ".join(body[2 * third :]))
    return Product(
        asin=f"B{number:09d}",
        title=" ".join([*title, kind.name]).capitalize(),
        prices=(float(random.randint(5, 500)),),
        category=kind.category,
        query=kind.query,
        product_category=kind.path,
        description=" ".join(body[:third]),
        features=features,
        options=options,
        attributes=kind.attributes[:3],
    )
