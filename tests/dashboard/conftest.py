from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_history import begun, ended, trained
from streamlit.testing.v1 import AppTest

from agentrl.db.store import Store, open_store


@pytest.fixture(scope="session", autouse=True)
def _no_scan_of_packages() -> Iterator[None]:
    """Streamlit looks through all installed packages for components at each run of an AppTest."""
    scan = "streamlit.components.v2.manifest_scanner.scan_component_manifests"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, lambda: [])
        yield


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def show() -> Callable[..., AppTest]:
    """A page by its module's name, opened at an address over a read-only store, and run once."""

    def script(name: str, url: str, run_id: str) -> None:
        from importlib import import_module

        from agentrl.db.admin.readonly import open_history

        import_module(f"agentrl.dashboard.pages.{name}").page(open_history(url), run_id)

    def shown(name: str, store: Store, run_id: str, **parameters: str) -> AppTest:
        given = (name, str(store.engine.url), run_id)
        app = AppTest.from_function(script, args=given, default_timeout=100)
        for key, value in parameters.items():
            app.query_params[key] = value
        app.run()
        assert not app.exception, [each.value for each in app.exception]
        return app

    return shown


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


def read_tables(html: str) -> list[Table]:
    reader = Tables()
    if "<thead>" in html:
        reader.feed(html)
    return reader.found


@pytest.fixture
def tables() -> Callable[[AppTest], list[Table]]:
    """The page's tables: those that can be sorted, then those with links and the folded ones."""

    def shown(app: AppTest) -> list[Table]:
        sortable = [
            {str(name): [str(cell) for cell in column] for name, column in frame.value.items()}
            for frame in app.dataframe
        ]
        return sortable + [t for each in app.get("html") for t in read_tables(each.proto.body)]

    return shown


@pytest.fixture
def tables_in() -> Callable[[str], list[Table]]:
    """The tables of HTML, without the bars."""
    return read_tables


@dataclass(frozen=True)
class Runs:
    """A store that nobody changes, with a run in each state; their ids."""

    store: Store
    fresh: str  # has just begun
    going: str  # has made three updates
    over: str  # has made two and ended


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    url = f"sqlite:///{tmp_path_factory.mktemp('runs') / 'store.db'}"
    ids = {}
    for name, updates in (("fresh", 0), ("going", 3), ("over", 2)):
        store, ids[name] = begun(url, name)
        if updates:
            trained(store, ids[name], updates)
        store.close()
    with closing(open_store(url)) as store:
        ended(store, ids["over"])
        yield Runs(store, **ids)


@pytest.fixture
def said() -> Callable[[AppTest], str]:
    """All text of a page."""

    def shown(app: AppTest) -> str:
        kinds = ("title", "subheader", "markdown", "caption", "info", "success", "warning", "error")
        written = [str(each.value) for kind in kinds for each in app.get(kind)]
        return "\n".join(written + [each.proto.body for each in app.get("html")])

    return shown
