from pathlib import Path

import pytest
from history import begun
from streamlit.testing.v1 import AppTest

from core import loading
from core.config import Config, Run, Store, Task
from core.errors import ConfigError
from dashboard import door
from ops.dashboard import start

VARIABLE, TOKEN = "AGENTRL_TEST_TOKEN", "a-token-of-a-test"


@pytest.fixture
def file(tmp_path: Path, url: str) -> str:
    """A configuration whose store has one run."""
    begun(url)[0].close()
    path = tmp_path / "config.toml"
    config = Config(tasks={"kg": Task()}, run=Run(home=str(tmp_path)), store=Store(url=url))
    path.write_text(loading.to_toml(config))
    return str(path)


def opened(*arguments: str) -> AppTest:
    """The script as Streamlit runs it."""

    def script(*arguments: str) -> None:
        from dashboard.script.app import main

        main(list(arguments))

    app = AppTest.from_function(script, args=arguments, default_timeout=20)
    app.run()
    assert not app.exception
    return app


def test_no_page_is_drawn_before_the_token_is_shown(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    app = opened(file, VARIABLE)
    assert (app.title[0].value, len(app.sidebar.selectbox)) == ("AgentRL", 0)
    for wrong in ("", "another", TOKEN + "x"):
        app.text_input[0].set_value(wrong)
        app.button[0].click().run()
        assert app.error[0].value == "That is not the token."
        assert not app.sidebar.selectbox
    app.text_input[0].set_value(TOKEN)
    app.button[0].click().run()
    assert app.title[0].value == "run"
    assert app.sidebar.selectbox[0].value == "run"
    assert TOKEN not in "".join(each.proto.body for each in app.get("html"))
    app.run()
    assert app.title[0].value == "run"


def test_a_token_that_is_not_set_lets_nobody_in(file: str) -> None:
    app = opened(file, VARIABLE)
    assert app.error[0].value.startswith(f"{VARIABLE} is not set")
    assert not app.title


def test_where_no_token_is_named_nobody_is_asked(file: str) -> None:
    assert opened(file).title[0].value == "run"


def test_a_cookie_is_known_by_its_mark_among_others_and_by_nothing_else() -> None:
    mine, other = door.mark_of(TOKEN), door.mark_of("other")
    assert door.carried(f"{other}.{mine}", mine)
    for cookie in ("", other, TOKEN, mine[:-1], f"{mine}x", "ü"):
        assert not door.carried(cookie, mine)


def test_off_loopback_a_token_is_required(file: str) -> None:
    for host in ("0.0.0.0", "192.0.2.1"):  # noqa: S104
        with pytest.raises(ConfigError, match="required off loopback"):
            start(Path(file), 8501, host)
    with pytest.raises(ConfigError, match=f"{VARIABLE} is not set"):
        start(Path(file), 8501, "0.0.0.0", VARIABLE)  # noqa: S104
