"""Addresses of pages, for links between them."""

from urllib.parse import urlencode


def address(page: str, **parameters: str) -> str:
    """Such as `/episodes?run=NAME&episode=ID`. `page`: the name in the menu."""
    return f"/{page.lower()}?{urlencode(parameters)}"
