"""Addresses of pages, for links between them."""

from dataclasses import dataclass
from urllib.parse import urlencode

FIRST = "Run"  # the page that Streamlit keeps at the root


def address(page: str, **parameters: str) -> str:
    """Such as `/episodes?run=NAME&episode=ID`. `page`: the name in the menu."""
    path = "" if page == FIRST else page.lower()
    return f"/{path}?{urlencode(parameters)}"


@dataclass(frozen=True, slots=True)
class Here:
    """The run that a page shows: its id, and its name in the address."""

    run_id: str
    run: str

    def to(self, page: str, **parameters: str) -> str:
        """The address of a page of this run."""
        return address(page, run=self.run, **parameters)

    def short(self, name: str) -> str:
        """An id without the run's, with which those of groups, episodes and checkpoints begin."""
        return name.removeprefix(f"{self.run_id}-")
