from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from db.store import Store


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def show() -> Callable[..., AppTest]:
    """A page by its module's name, opened at an address over a read-only store, and run once."""

    def script(name: str, url: str, run_id: str) -> None:
        from importlib import import_module

        from db.readonly import open_history

        import_module(f"dashboard.pages.{name}").page(open_history(url), run_id)

    def shown(name: str, store: Store, run_id: str, **parameters: str) -> AppTest:
        given = (name, str(store.engine.url), run_id)
        app = AppTest.from_function(script, args=given, default_timeout=100)
        for key, value in parameters.items():
            app.query_params[key] = value
        app.run()
        assert not app.exception, [each.value for each in app.exception]
        return app

    return shown


@pytest.fixture
def html() -> Callable[[AppTest], str]:
    """The page's own HTML."""
    return lambda app: " ".join(each.proto.body for each in app.get("html"))


Table = dict[str, list[str]]  # a column's cells by its name


class Tables(HTMLParser):
    """Reads the tables of a page that have a head."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Table] = []
        self._inside, self._column = "", 0

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 - its base's
        if tag == "thead":
            self.found.append({})
        elif tag == "tr":
            self._column = 0
        elif tag in {"th", "td"}:
            self._inside = tag
            if tag == "td" and self.found:
                list(self.found[-1].values())[self._column].append("")
                self._column += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in {"th", "td"}:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "th":
            self.found[-1][data] = []
        elif self._inside == "td":
            list(self.found[-1].values())[self._column - 1][-1] += data


@pytest.fixture
def tables() -> Callable[[AppTest], list[Table]]:
    """The page's tables, those that are folded too, without the bars."""

    def shown(app: AppTest) -> list[Table]:
        reader = Tables()
        for each in app.get("html"):
            if "<thead>" in each.proto.body:
                reader.feed(each.proto.body)
        return reader.found

    return shown
