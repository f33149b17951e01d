"""Pages and clicks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.tasks.webshop.catalogue.catalogue import MemoryCatalogue
from agentrl.envs.tasks.webshop.generate import catalogue
from agentrl.envs.tasks.webshop.goals import Goal
from agentrl.envs.tasks.webshop.shop import Shop

ITEM_PAGE = (
    "Instruction:|Find me energy saving desk lamps|Back to Search|< Prev|color|crimson red|navy "
    "blue|size|small|large|Acme Desk Lamp with Red Shade|Price: $24.5|Rating: N.A.|Description"
    "|Features|Reviews|Buy Now"
)


@pytest.fixture
def shop(small: MemoryCatalogue, shop_goal: Goal) -> Shop:
    return Shop(small, shop_goal)


def walk(shop: Shop, *clicks: str) -> list[str]:
    for click in clicks:
        shop.click(click)
    return shop.texts()


def test_the_search_page(shop: Shop) -> None:
    assert shop.texts() == ["WebShop", "Instruction:", shop.goal.instruction, "Search"]
    assert (shop.has_search_bar, shop.clickables()) == (True, ["search"])


def test_a_page_of_results(shop: Shop) -> None:
    shop.search("LAMP or chair")
    assert shop.texts()[2:5] == ["Back to Search", "Page 1 (Total results: 2)", "Next >"]
    assert shop.texts()[5:] == [
        *("B01", "Acme Desk Lamp with Red Shade", "$24.5"),
        *("B02", "Bolt Office Chair", "$10.0 to $30.0"),
    ]
    assert shop.clickables() == ["back to search", "next >", "b01", "b02"]
    assert not shop.has_search_bar


def test_beyond_the_last_result_there_is_an_empty_page(shop: Shop) -> None:
    shop.search("lamp")
    texts = walk(shop, "next >")
    assert texts[3:] == ["Page 2 (Total results: 1)", "< Prev", "Next >"]
    assert shop.clickables() == ["back to search", "< prev", "next >"]
    assert "B01" in walk(shop, "< Prev")


def test_a_products_page(shop: Shop) -> None:
    shop.search("lamp")
    assert "|".join(walk(shop, "B01")) == ITEM_PAGE
    assert shop.clickables() == [
        *("back to search", "< prev", "description", "features", "reviews", "buy now"),
        *("crimson red", "navy blue", "small", "large"),
    ]


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("description", ["A lamp that folds."]),
        ("Features", ["Dimmable light", "Easy clean"]),
        ("reviews", ["No reviews found"]),
        (
            "attributes",
            ["energy saving", "easy install", "garden", "desk lamps", "Home › Lighting › Lamps"],
        ),
    ],
)
def test_pages_of_a_product(
    small: MemoryCatalogue, shop_goal: Goal, page: str, texts: list[str]
) -> None:
    shop = Shop(small, shop_goal, attributes=True)
    shop.search("lamp")
    assert walk(shop, "b01", page)[4:] == texts
    assert shop.clickables() == ["back to search", "< prev"]
    assert "Attributes" in walk(shop, "< prev")


def test_reviews_are_shown_where_there_are_any(shop: Shop) -> None:
    shop.search("chair")
    assert walk(shop, "b02", "reviews")[4:] == ['"Fine"', "4", "It stands."]


def test_options_stay_on_the_products_pages_and_go_with_it(shop: Shop) -> None:
    shop.search("lamp")
    walk(shop, "b01", "navy blue", "Crimson Red", "small", "features", "< prev")
    assert shop.chosen == {"color": "crimson red", "size": "small"}
    walk(shop, "< prev")
    assert (shop.chosen, shop.product) == ({}, None)
    walk(shop, "b01", "small", "back to search")
    assert (shop.chosen, shop.has_search_bar) == ({}, True)


def test_a_purchase_is_worth_something_and_nothing_else_is(shop: Shop) -> None:
    assert shop.click("buy now") is None
    shop.search("lamp")
    walk(shop, "b01", "crimson red", "small")
    bought = shop.click("Buy Now")
    assert bought is not None
    assert bought.reward == 1.0


def test_what_is_not_clickable_does_nothing(shop: Shop) -> None:
    before = shop.texts()
    assert walk(shop, "search", "b01", "next >", "nothing", "") == before


def test_a_search_works_on_every_page_and_an_empty_one_on_none(shop: Shop) -> None:
    shop.search("lamp")
    walk(shop, "b01", "small")
    shop.search("")
    assert shop.product is not None
    shop.search("chair")
    assert (shop.chosen, shop.found) == ({}, ["B02"])
    shop.search("nothing of this")
    assert shop.texts()[3] == "Page 1 (Total results: 0)"


@settings(max_examples=30)
@given(st.lists(st.integers(0, 40), max_size=15), st.text(max_size=20))
def test_any_walk_stays_in_the_shop(picks: list[int], text: str) -> None:
    shop = Shop(catalogue(0, 48), Goal("B0000", "", (), (), 50.0, "", "", "Mug"))
    shop.search("red chair bed cup")
    for pick in picks:
        clickables = shop.clickables()
        assert shop.texts()
        assert len(clickables) == len(set(clickables))
        shop.click(clickables[pick % len(clickables)])
    shop.search(text)
    shop.click(text)
