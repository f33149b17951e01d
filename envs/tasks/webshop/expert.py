"""A demonstrator: searches for what is wanted, opens what fits, chooses, buys.

Of made-up goals it knows what an agent can read: titles, prices and options. Of the benchmark's it
is shown the product that was meant. With noise it errs as a learner does: searches with a word
less, opens or chooses something else, leaves the page, buys too early. Every call stays
well-formed.
"""

from collections.abc import Sequence
from random import Random

from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.webshop.catalogue.product import Product
from agentrl.envs.tasks.webshop.environment import ARGUMENTS, CLICK_TOOL, SEARCH_TOOL
from agentrl.envs.tasks.webshop.reward import alike, colour
from agentrl.envs.tasks.webshop.shop import BUY, NEXT, PREVIOUS, Shop

EARLY = 0.2  # of the errors on a product's page: bought as it is
TAKEN = 0.5  # of the errors among results: one of them is taken for the right one


class WebshopExpert:
    """An Expert; `shop`: its own visit, where it does what it says. `noise`: errors a turn."""

    def __init__(self, shop: Shop, *, shown: bool, seed: int, noise: float) -> None:
        self._shop, self._shown = shop, shown
        self._random, self._noise = Random(seed), noise
        self._seen: set[str] = set()
        self._mistake = ""

    def act(self, messages: Sequence[Message]) -> ToolCall:
        del messages  # its own visit shows the same pages
        errs = self._random.random() < self._noise
        tool, argument = self._wrong() if errs else self._right()
        if tool == SEARCH_TOOL:
            self._shop.search(argument)
        elif argument.lower() != BUY.lower():
            self._shop.click(argument)
        return ToolCall(tool, {ARGUMENTS[tool]: argument})

    def _right(self) -> tuple[str, str]:
        shop = self._shop
        if shop.has_search_bar:
            self._seen.clear()
            return SEARCH_TOOL, self._keywords()
        if shop.product is None:
            return self._pick()
        if shop.sub_page:
            return CLICK_TOOL, PREVIOUS.lower()
        return self._choose(shop.product)

    def _keywords(self) -> str:
        goal = self._shop.goal
        words = [*goal.attributes, goal.query, *goal.options]
        return goal.title.lower() if self._shown else " ".join(words)

    def _pick(self) -> tuple[str, str]:
        """A product of this page that may be right, else the next page, else the search again."""
        shop = self._shop
        for product in shop.on_page:
            if product.asin not in self._seen and self._fits(product):
                return CLICK_TOOL, product.asin.lower()
        if shop.page * shop.page_size < len(shop.found):
            return CLICK_TOOL, NEXT.lower()
        self._seen.clear()
        return SEARCH_TOOL, self._keywords()

    def _fits(self, product: Product) -> bool:
        goal = self._shop.goal
        if product.asin == self._mistake:
            return True
        if self._shown:
            return product.asin == goal.asin
        words = product.title.replace(",", "").split()
        named = all(attribute in words for attribute in goal.attributes)
        return named and product.query == goal.query and product.price <= goal.price_upper

    def _choose(self, product: Product) -> tuple[str, str]:
        """The next option, else buy; back where it does not come as wanted."""
        shop = self._shop
        offered = [value for values in product.options.values() for value in values]
        choices = [_nearest(value, offered) for value in shop.goal.options]
        known = self._shown or product.asin == self._mistake
        if (None in choices and not known) or not self._fits(product):
            self._seen.add(product.asin)
            return CLICK_TOOL, PREVIOUS.lower()
        missing = [value for value in choices if value and value not in shop.chosen.values()]
        return CLICK_TOOL, missing[0] if missing else BUY.lower()

    def _wrong(self) -> tuple[str, str]:
        shop, random = self._shop, self._random
        if shop.has_search_bar:
            words = self._keywords().split()
            words.pop(random.randrange(len(words)))
            return SEARCH_TOOL, " ".join(words) or shop.goal.query
        if shop.product is None and shop.on_page and random.random() < TAKEN:
            self._mistake = random.choice(shop.on_page).asin
            return CLICK_TOOL, self._mistake.lower()
        if shop.product is not None and not shop.sub_page and random.random() < EARLY:
            return CLICK_TOOL, BUY.lower()
        others = [text for text in shop.clickables() if text != BUY.lower()]
        return CLICK_TOOL, random.choice(others)


def _nearest(option: str, offered: Sequence[str]) -> str | None:
    """The option itself, else one that counts as it."""
    if option in offered:
        return option
    return next((value for value in offered if alike(colour(value), colour(option))), None)
