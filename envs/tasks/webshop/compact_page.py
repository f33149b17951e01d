"""Pages in a few words, for a policy of a million parameters; what a click does is the same."""

from agentrl.envs.tasks.webshop.shop import NEXT, Shop

COMPACT_PAGE = 3  # results on a page
MAX_TEXT = 400  # characters of a sub-page


def compact_page(shop: Shop) -> str:
    """A result a line; of a product its options and what is chosen."""
    if shop.has_search_bar:
        return "search"
    if shop.sub_page:
        return "\n".join(shop.texts()[4:])[:MAX_TEXT]
    if shop.product is not None:
        options = [f"{kind}: {', '.join(of)}" for kind, of in shop.product.options.items()]
        chosen = ["chosen: " + ", ".join(shop.chosen.values())] if shop.chosen else []
        lines = [f"{shop.product.title} {shop.product.price_tag}", *options, *chosen]
        return "\n".join(lines).lower()
    lines = [f"{each.asin} {each.title} {each.price_tag}" for each in shop.on_page]
    more = [NEXT] if shop.page * shop.page_size < len(shop.found) else []
    return "\n".join([*lines, *more]).lower() or "nothing found"
