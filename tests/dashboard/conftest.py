from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from db.store import Store

Show = Callable[[str, Store, str], AppTest]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def show() -> Show:
    """A page by its module's name, run once over a read-only store."""

    def script(name: str, url: str, run_id: str) -> None:
        from importlib import import_module

        from db.readonly import open_history

        import_module(f"dashboard.pages.{name}").page(open_history(url), run_id)

    def shown(name: str, store: Store, run_id: str) -> AppTest:
        given = (name, str(store.engine.url), run_id)
        app = AppTest.from_function(script, args=given, default_timeout=30)
        app.run()
        assert not app.exception, [each.value for each in app.exception]
        return app

    return shown
