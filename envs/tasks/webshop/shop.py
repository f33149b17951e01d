"""One visit to the shop: which page is open, what is on it, what a click does.

    search page ─ search ─▶ results ─ a product ─▶ item page ─ Buy Now ─▶ done
         ▲                  Next > < Prev           │     ▲
         └── Back to Search, from everywhere        ▼     │ < Prev
                                          Description, Features, Reviews

Texts and clickables are those of WebShop's pages as a browser shows them. As there, a search works
on every page, and Next > leads beyond the last result.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentrl.envs.tasks.webshop.catalogue.catalogue import Catalogue
from agentrl.envs.tasks.webshop.catalogue.product import Product
from agentrl.envs.tasks.webshop.goals import Goal
from agentrl.envs.tasks.webshop.reward import Worth, worth

FOUND = 50  # results of a search
PAGE = 10  # of them on a page
MAX_KEYWORDS = 10_000  # characters of a search that are read

SEARCH, BACK, PREVIOUS, NEXT, BUY = "Search", "Back to Search", "< Prev", "Next >", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
ATTRIBUTES = "Attributes"


@dataclass
class Shop:
    """`page_size`: results on a page; `attributes`: there is a sub-page of them, too."""

    catalogue: Catalogue
    goal: Goal
    page_size: int = PAGE
    attributes: bool = False
    page: int = 0  # of the results, from 1; 0 on the search page
    found: list[str] = field(default_factory=list)
    product: Product | None = None
    sub_page: str = ""
    chosen: dict[str, str] = field(default_factory=dict)

    @property
    def has_search_bar(self) -> bool:
        return self.page == 0

    @property
    def on_page(self) -> list[Product]:
        """The results of this page."""
        first = (self.page - 1) * self.page_size
        return [self.catalogue.product(each) for each in self.found[first:][: self.page_size]]

    def search(self, keywords: str) -> None:
        """Open the first page of results, keywords in lower case; without any, nothing happens."""
        if keywords:
            self.found = self.catalogue.find(keywords[:MAX_KEYWORDS].lower(), FOUND)
            self._results(1)

    def click(self, value: str) -> Worth | None:
        """What a click on a text does, whatever its case; of Buy Now, what the purchase is worth.

        Nothing happens where the text is not among the clickables, nor for `search`.
        """
        value = value.lower()
        if value == SEARCH.lower() or value not in self.clickables():
            return None
        if value == BUY.lower() and self.product is not None:
            return worth(self.product, self.chosen, self.goal)
        if value == BACK.lower():
            self.page, self.product, self.sub_page, self.chosen = 0, None, "", {}
        elif self.product is None:
            self._click_result(value)
        else:
            self._click_item(value, self.product)
        return None

    def clickables(self) -> list[str]:
        """As the benchmark lists them: buttons and products in lower case, then options."""
        links = [product.asin for product in self.on_page] if self._is("results") else []
        texts = [text.lower() for text in (*self._buttons(), *links)]
        return list(dict.fromkeys([*texts, *self._options()]))

    def texts(self) -> list[str]:
        """The page's visible texts, in order."""
        return [text for each in self._texts() if (text := each.strip())]

    def _is(self, kind: str) -> bool:
        here = "sub" if self.sub_page else "item" if self.product else "results"
        return kind == (here if self.page else "search")

    def _results(self, page: int) -> None:
        self.page, self.product, self.sub_page, self.chosen = page, None, "", {}

    def _click_result(self, value: str) -> None:
        if value == NEXT.lower():
            self._results(self.page + 1)
        elif value == PREVIOUS.lower():
            self._results(self.page - 1)
        else:
            asins = {product.asin.lower(): product for product in self.on_page}
            self.product = asins[value]

    def _click_item(self, value: str, product: Product) -> None:
        pages = {name.lower(): name for name in self._sub_pages()}
        if value == PREVIOUS.lower() and self.sub_page:
            self.sub_page = ""
        elif value == PREVIOUS.lower():
            self._results(self.page)
        elif value in pages:
            self.sub_page = pages[value]
        else:
            kinds = [kind for kind, values in product.options.items() if value in values]
            self.chosen[kinds[-1]] = value

    def _sub_pages(self) -> tuple[str, ...]:
        return (*SUB_PAGES, ATTRIBUTES) if self.attributes else SUB_PAGES

    def _buttons(self) -> tuple[str, ...]:
        if self._is("search"):
            return (SEARCH,)
        if self._is("results"):
            return (BACK, PREVIOUS, NEXT) if self.page > 1 else (BACK, NEXT)
        return (BACK, PREVIOUS, *self._sub_pages(), BUY) if self._is("item") else (BACK, PREVIOUS)

    def _options(self) -> Iterator[str]:
        if self._is("item") and self.product is not None:
            for values in self.product.options.values():
                yield from values

    def _texts(self) -> Iterator[str]:
        wanted = ("Instruction:", self.goal.instruction)
        if self._is("search"):
            yield from ("WebShop", *wanted, SEARCH)
        elif self.product is None:
            yield from (*wanted, BACK, f"Page {self.page} (Total results: {len(self.found)})")
            yield from self._buttons()[1:]
            for product in self.on_page:
                yield from (product.asin, product.title, product.price_tag)
        else:
            yield from (*wanted, BACK, PREVIOUS)
            yield from self._sub_texts(self.product) if self.sub_page else self._item(self.product)

    def _item(self, product: Product) -> Iterator[str]:
        for kind, values in product.options.items():
            yield from (kind, *values)
        yield from (product.title, f"Price: {product.price_tag}", f"Rating: {product.rating}")
        yield from (*self._sub_pages(), BUY)

    def _sub_texts(self, product: Product) -> Iterator[str]:
        if self.sub_page == "Description":
            yield product.description
        elif self.sub_page == "Features":
            yield from product.features
        elif self.sub_page == ATTRIBUTES:
            yield from product.attributes
            yield from (product.category, product.query, product.product_category)
        elif not product.reviews:
            yield "No reviews found"
        else:
            for review in product.reviews:
                yield from (f'"{review.title}"', review.score, review.body)


def available(shop: Shop) -> Mapping[str, object]:
    """The benchmark's list of what can be done."""
    return {"has_search_bar": shop.has_search_bar, "clickables": shop.clickables()}
