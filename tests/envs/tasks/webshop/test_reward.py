"""Rewards worked out by hand."""

from dataclasses import astuple

import msgspec
import pytest

from agentrl.envs.tasks.webshop.catalogue.product import Product
from agentrl.envs.tasks.webshop.goals import Goal
from agentrl.envs.tasks.webshop.nouns import nouns
from agentrl.envs.tasks.webshop.reward import alike, colour, options_matched, type_reward, worth

LAMP = Product(
    asin="B01",
    title="Acme Desk Lamp with Red Shade",
    prices=(24.5,),
    query="desk lamps",
    product_category="Home › Lighting › Lamps",
    description="It has a LONG CABLE.",
    features=("Dimmable light",),
    attributes=("energy saving",),
)
GOAL = Goal("B01", "", ("energy saving",), ("red", "small"), 30.0, "desk lamps", "", LAMP.title)


@pytest.mark.parametrize(
    ("chosen", "changes", "expected"),
    [
        # type · (attributes + options + price) / (1 + 2 + 1)
        ({"color": "crimson red", "size": "small"}, {}, (1.0, 1, 2, True, 1.0)),
        ({"color": "crimson red"}, {}, (1.0, 1, 1, True, 0.75)),
        ({}, {}, (1.0, 1, 0, True, 0.5)),
        ({}, {"price_upper": 24.0}, (1.0, 1, 0, False, 0.25)),
        ({}, {"price_upper": 24.5}, (1.0, 1, 0, True, 0.5)),
        ({}, {"attributes": ("long cable",), "options": ()}, (1.0, 1, 0, True, 1.0)),
        ({}, {"attributes": ("dimmable", "waterproof"), "options": ()}, (1.0, 1, 0, True, 2 / 3)),
        ({"a": "small", "b": "small"}, {}, (1.0, 1, 1, True, 0.75)),
        ({}, {"title": "Garden Hose"}, (0.0, 1, 0, True, 0.0)),
    ],
)
def test_a_purchase_is_worth(
    chosen: dict[str, str], changes: dict[str, object], expected: tuple[float, ...]
) -> None:
    assert astuple(worth(LAMP, chosen, msgspec.structs.replace(GOAL, **changes))) == expected


@pytest.mark.parametrize(
    ("title", "query", "path", "expected"),
    [
        # nouns of LAMP: acme desk lamp red shade
        ("Lamp", "other", "", 1.0),  # 1 of 1
        ("One Two Lamp Four Five Six Seven", "other", "", 1.0),  # lamp of lamp only: closed class
        ("Aa Bb Cc Dd Lamp", "other", "", 0.5),  # 1 of 5 is not over 0.2
        ("Aa Bb Cc Dd Lamp", "desk lamps", "", 1.0),
        ("Aa Bb Cc Dd Lamp", "other", "Lamps › Home", 1.0),  # two categories, in any order
        ("Aa Bb Cc Dd Lamp", "other", "Lamps › Garden", 0.5),
        ("Aa Bb Cc Dd Ee Ff Gg Hh Ii Jj Lamp", "desk lamps", "", 0.1),  # 1 of 11
        ("Aa Bb", "desk lamps", "Home › Lighting", 0.0),
        ("with 12", "other", "", 0.5),  # no nouns wanted: 0.2
    ],
)
def test_the_type_is_the_kind_of_thing(title: str, query: str, path: str, expected: float) -> None:
    goal = msgspec.structs.replace(GOAL, title=title, query=query, product_category=path)
    assert type_reward(LAMP, goal) == expected


def test_shades_of_a_colour_are_one() -> None:
    assert colour("navy blue") == "blue"  # the first of the list, not of the text
    assert colour("crimson red") == "red"
    assert colour("x-large") == "x-large"
    assert options_matched(("sky blue", "large"), ["navy blue", "x-large"]) == 2


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("energy saving", "saving energy", True),
        ("energy saving", "Energy-Saving!", True),
        ("easy clean", "easy carry", False),
        ("small", "medium", False),
        ("large", "large size", True),
        ("", "red", False),
        ("", "", False),
    ],
)
def test_texts_are_alike_by_their_words(one: str, other: str, expected: bool) -> None:
    assert alike(one, other) == alike(other, one) == expected


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Acme Desk Lamp, 2 Pack", "acme desk lamp pack"),
        ("soft padded chair for the office", "chair office"),
        ("Women's Shoes with 3D x Print", "women's shoes print"),
        ("Women Shirts Women Tops", "women shirts women tops"),
        ("", ""),
    ],
)
def test_nouns_of_titles(title: str, expected: str) -> None:
    assert nouns(title) == tuple(expected.split())
