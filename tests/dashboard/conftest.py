from collections.abc import Callable
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
        app = AppTest.from_function(script, args=given, default_timeout=30)
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
