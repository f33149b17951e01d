"""Baseline policies: random and constant."""

from collections.abc import Sequence
from random import Random

from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.webshop.environment import ARGUMENTS, CLICK_TOOL, SEARCH_TOOL
from agentrl.envs.tasks.webshop.shop import BUY, SEARCH, Shop


class RandomShopper:
    """Searches for a word of the instruction, then clicks anything there is."""

    def __init__(self, shop: Shop, seed: int) -> None:
        self._shop, self._random = shop, Random(seed)

    def act(self, messages: Sequence[Message]) -> ToolCall:
        del messages  # its own visit shows the same pages
        shop = self._shop
        if shop.has_search_bar:
            keyword = self._random.choice(shop.goal.instruction.split())
            shop.search(keyword)
            return ToolCall(SEARCH_TOOL, {ARGUMENTS[SEARCH_TOOL]: keyword})
        value = self._random.choice([text for text in shop.clickables() if text != SEARCH.lower()])
        if value != BUY.lower():
            shop.click(value)
        return ToolCall(CLICK_TOOL, {ARGUMENTS[CLICK_TOOL]: value})


class FirstResult:
    """Searches for the instruction as it is and buys what comes first, without options."""

    def __init__(self, shop: Shop) -> None:
        shop.search(shop.goal.instruction)
        first = [product.asin.lower() for product in shop.on_page[:1]]
        clicks = [(CLICK_TOOL, value) for value in (*first, BUY.lower())]
        self._turns = iter([(SEARCH_TOOL, shop.goal.instruction), *clicks])

    def act(self, messages: Sequence[Message]) -> ToolCall:
        del messages
        tool, value = next(self._turns, (CLICK_TOOL, BUY.lower()))
        return ToolCall(tool, {ARGUMENTS[tool]: value})
