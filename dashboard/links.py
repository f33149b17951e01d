"""Addresses of pages, for links between them."""

from dataclasses import dataclass
from urllib.parse import urlencode

FIRST = "Run"  # the page that Streamlit keeps at the root


def address(page: str, **parameters: str) -> str:
    """Return an address like `/episodes?run=NAME&episode=ID`. `page`: the name in the menu."""
    path = "" if page == FIRST else page.lower()
    return f"/{path}?{urlencode(parameters)}"


@dataclass(frozen=True, slots=True)
class Here:
    """The run of a page: its id, and its name in the address."""

    run_id: str
    run: str

    def to(self, page: str, **parameters: str) -> str:
        """Return the address of a page of this run."""
        return address(page, run=self.run, **parameters)

    def short(self, name: str) -> str:
        """Shorten the id of a group, episode or checkpoint by the run's id that it begins with."""
        return name.removeprefix(f"{self.run_id}-")
