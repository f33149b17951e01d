import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from run_history import begun
from streamlit.testing.v1 import AppTest
from structlog.testing import capture_logs

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.run import Run, Store
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import AgentRLError, ConfigError
from agentrl.core.http.access import origin
from agentrl.dashboard import auth
from agentrl.dashboard.auth import LoginResult, SessionStore
from agentrl.dashboard.streamlit_server import streamlit_options, trust_proxies
from agentrl.ops.processes.dashboard import check_proxies, refuse_taken, run

HERE = "192.0.2.7"
VARIABLE, TOKEN = "AGENTRL_TEST_TOKEN", "a-token-of-a-test"


@pytest.fixture
def file(tmp_path: Path, url: str) -> str:
    """A configuration whose store has one run."""
    begun(url)[0].close()
    path = tmp_path / "config.toml"
    config = Config(tasks={"kg": Task()}, run=Run(home=str(tmp_path)), store=Store(url=url))
    path.write_text(config_loading.to_toml(config))
    return str(path)


def opened(*arguments: str) -> AppTest:
    """The script as Streamlit runs it."""

    def script(*arguments: str) -> None:
        from agentrl.dashboard.script.app import main

        main(list(arguments))

    app = AppTest.from_function(script, args=arguments, default_timeout=100)
    app.run()
    assert not app.exception
    return app


@pytest.fixture(autouse=True)
def nobody_known() -> Iterator[None]:
    """No session of another test."""
    yield
    auth.session_store.cache_clear()


def shown(app: AppTest, written: str) -> AppTest:
    app.text_input[0].set_value(written)
    return app.button[0].click().run()


def test_no_page_is_drawn_before_the_token_is_shown(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    app = opened(file, VARIABLE)
    assert (app.title[0].value, len(app.sidebar.selectbox)) == ("AgentRL", 0)
    shown(app, TOKEN)
    assert app.title[0].value == "run"
    assert app.sidebar.selectbox[0].value == "run"
    html = "".join(each.proto.body for each in app.get("html"))
    assert app.session_state[auth.SESSION] in html
    assert TOKEN not in html
    app.run()
    assert app.title[0].value == "run"
    assert opened(file, VARIABLE).title[0].value == "AgentRL"  # another browser
    auth.session_store.cache_clear()  # another process
    app.run()
    assert (app.title[0].value, len(app.sidebar.selectbox)) == ("AgentRL", 0)


def test_who_shows_a_wrong_token_is_told_so_and_sees_no_page(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    app = opened(file, VARIABLE)
    with capture_logs() as lines:
        shown(app, TOKEN + "x")
    assert app.error[0].value == "Wrong token."
    assert [line["event"] for line in lines] == ["Login with a wrong token"]
    assert TOKEN not in str(lines)
    assert not app.sidebar.selectbox


def test_a_token_that_is_not_set_lets_nobody_in(file: str) -> None:
    app = opened(file, VARIABLE)
    assert app.error[0].value.startswith(f"the variable {VARIABLE} is not set")
    assert not app.title


def test_where_no_token_is_named_nobody_is_asked(file: str) -> None:
    assert opened(file).title[0].value == "run"


def test_a_cookie_opens_the_door_of_the_process_that_gave_it_until_its_end() -> None:
    keeper, other = SessionStore(TOKEN), SessionStore(TOKEN)
    mine, theirs = keeper.log_in(TOKEN, HERE, 5.0).session, other.log_in(TOKEN, HERE, 5.0).session
    assert len({mine, theirs, keeper.log_in(TOKEN, HERE, 5.0).session}) == 3
    for cookie in (mine, f"{theirs}.{mine}", f"{mine}.{theirs}"):
        assert keeper.is_live(cookie, 4.9 + auth.LASTS_S)
        assert not keeper.is_live(cookie, 5.0 + auth.LASTS_S)
    for cookie in ("", ".", theirs, TOKEN, mine[:-1], f"{mine}x", "ü"):
        assert not keeper.is_live(cookie, 5.0)


def test_a_session_too_many_ends_the_oldest() -> None:
    keeper = SessionStore(TOKEN, most=2)
    sessions = [keeper.log_in(TOKEN, HERE, 1.0).session for _ in range(3)]
    assert [keeper.is_live(each, 2.0) for each in sessions] == [False, True, True]


def test_after_each_wrong_token_an_address_waits_twice_as_long_until_a_right_one() -> None:
    keeper, now, waits = SessionStore(TOKEN), 0.0, []
    for _ in range(8):
        assert keeper.log_in("wrong", HERE, now) == LoginResult()
        waits.append(keeper.log_in(TOKEN, HERE, now).wait_s)
        assert not keeper.log_in(TOKEN, HERE, now + 0.9 * waits[-1]).session
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    session = keeper.log_in(TOKEN, HERE, now).session
    assert keeper.log_in("ü", HERE, now) == LoginResult()
    assert keeper.log_in(TOKEN, HERE, now).wait_s == 1
    assert keeper.is_live(session, now)  # who has shown it looks on


def test_wrong_tokens_of_one_keep_nobody_else_out() -> None:
    keeper = SessionStore(TOKEN)
    for second in range(3600):
        keeper.log_in("wrong", "a stranger", second)
        if second % 5 == 0:
            assert keeper.log_in(TOKEN, HERE, second + 0.001).session
    assert 0 < keeper.log_in(TOKEN, "a stranger", 3600).wait_s <= auth.LONGEST_S


def test_only_so_many_addresses_are_remembered() -> None:
    keeper = SessionStore(TOKEN, most=2)
    for address in ("a", "b", "c"):
        keeper.log_in("wrong", address, 0.0)
    assert [keeper.log_in(TOKEN, address, 0.0).wait_s for address in ("c", "b", "a")] == [1, 1, 0]


def test_the_page_keeps_the_id_beside_others_and_to_https_where_it_came_so() -> None:
    page = auth.cookie_script("0a")
    assert all(each in page for each in ("SameSite=Strict", "'https:' ? '; Secure'", "'0a'"))


def test_off_loopback_a_token_is_required(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("0.0.0.0", "192.0.2.1"):  # noqa: S104
        with pytest.raises(ConfigError, match="is not loopback"):
            run(Path(file), 8501, host)
    with pytest.raises(ConfigError, match=f"{VARIABLE} is not set"):
        run(Path(file), 8501, "0.0.0.0", VARIABLE)  # noqa: S104
    monkeypatch.setenv(VARIABLE, 15 * "x")
    with pytest.raises(ConfigError, match="a token of 16 or more characters"):
        run(Path(file), 8501, "::", VARIABLE)


@pytest.mark.parametrize(
    ("proxies", "peer", "browser"),
    [
        ([], "127.0.0.1", "127.0.0.1"),
        (["10.0.0.7"], "192.0.2.9", "192.0.2.9"),
        (["10.0.0.7"], "10.0.0.7", "192.0.2.66"),
        (["10.0.0.0/8", "192.0.2.66"], "10.0.0.7", "198.51.100.1"),
    ],
)
def test_only_a_proxy_that_is_named_says_who_the_browser_is(
    proxies: list[str], peer: str, browser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Streamlit's server sees it: `st.context.ip_address` is the client of this scope."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # that of the shell is not used
    seen: list[str] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope["client"][0])

    trust_proxies(proxies)
    server = uvicorn.Config(app, lifespan="off", log_config=None)
    server.load()
    told = (b"x-forwarded-for", b"203.0.113.5, 198.51.100.1, 192.0.2.66")
    scope = {"type": "websocket", "scheme": "ws", "client": (peer, 5000), "headers": [told]}
    asyncio.run(server.loaded_app(scope, None, None))
    assert seen == [browser]


def test_a_proxy_that_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dashboard\.proxies: 'nginx' does not appear to be"):
        check_proxies(["10.0.0.0/8", "::1", "nginx"])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_port_is_had_or_refused_whatever_the_address_looks_like(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        taken = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    port = taken.getsockname()[1]
    with taken, pytest.raises(AgentRLError, match=f"cannot listen on {host}:{port}: Address"):
        refuse_taken(port, host)
    refuse_taken(port, host)
    with pytest.raises(AgentRLError, match="cannot listen on 192"):
        refuse_taken(port, "192.0.2.1")


def test_streamlit_is_told_its_address_where_it_would_ask_the_internet() -> None:
    told = f"--browser.serverAddress={socket.gethostname()}"
    assert all(told in streamlit_options([], 8501, host) for host in ("0.0.0.0", "::"))  # noqa: S104
    assert not any("serverAddress" in each for each in streamlit_options([], 8501, "127.0.0.1"))


def test_an_origin_names_what_a_browser_can_open() -> None:
    assert origin("127.0.0.1", 8501) == "http://127.0.0.1:8501"
    assert origin("::1", 8501) == "http://[::1]:8501"
    for everywhere in ("0.0.0.0", "::"):  # noqa: S104
        assert origin(everywhere, 8501) == f"http://{socket.gethostname()}:8501"
