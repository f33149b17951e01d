"""The real dashboard over a real short run, in a real browser: each page, by mouse and keyboard."""

import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from run_history import begun, trained
from running import ROOT, agentrl, eventually

from agentrl.dashboard.auth import COOKIE, PAUSE_S
from agentrl.dashboard.links import address
from agentrl.dashboard.navigation import PAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # a busy machine draws slowly

NAME = "shown"
PATIENCE_MS = 60_000  # of a busy machine
SETTLED = """() => {
  const app = document.querySelector('[data-testid="stApp"]');
  return app?.dataset.testConnectionState === 'CONNECTED'
    && app.dataset.testScriptState === 'notRunning'
    && app.querySelector('h1')
    && !app.querySelector('[data-stale="true"], [data-testid="stSkeleton"]');
}"""
ERRORS = '[data-testid="stException"], [data-testid="stAlertContentError"], [role="dialog"]'
# What each page says of a run that has trained.
SAYS = {
    "Run": "completed",
    "Training": "Entropy",
    "Tasks": "dbbench",
    "Episodes": "trained in",
    "Checkpoints": "◀ newest",
    "Compare": "and other runs",
    "Configuration": "Show every key",
    "Processes": "Newest first",
    "Accounting": "agree",
    "SQL": "Tables and views",
}


@dataclass(frozen=True)
class Shown:
    """Where the dashboard of a run is, and the browser that looks at it."""

    browser: Browser
    root: str

    def open(self, path: str, scheme: str = "light") -> Page:
        context = self.browser.new_context(
            color_scheme=scheme, viewport={"width": 1280, "height": 1400}
        )  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(self.root + path)
        settled(page)
        assert [url for url in asked if not url.startswith((self.root, "data:", "blob:"))] == []
        return page


def heading(page: Page) -> Locator:
    """The page's title; while its script runs, the one before may still stand after it."""
    return page.locator("h1").first


def settled(page: Page) -> None:
    """Wait until the script has ended and what it drew stands; fails where that is an error."""
    page.wait_for_function(SETTLED)
    assert page.locator(ERRORS).all_inner_texts() == []


@pytest.fixture(scope="module")
def chromium() -> str:
    """The browser's program."""
    found = shutil.which("chromium")
    if found is None and os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail("chromium is not installed: apt-get install chromium")
    if found is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment that names a run of three updates, which is over."""
    home = tmp_path_factory.mktemp("home")
    log = home.parent / f"{home.name}.log"
    environment = {
        "AGENTRL__RUN__HOME": str(home),
        "AGENTRL__RUN__NAME": NAME,
        "AGENTRL__RUN__STOP_UPDATES": "3",
        "AGENTRL__MODEL__PATH": str(ROOT / "models" / "tiny"),
        "AGENTRL__DISPATCH__GROUPS_PER_UPDATE": "4",
    }
    config = str(ROOT / "configs" / "quickstart.toml")
    with agentrl("up", config, environment=environment, output=log) as process:
        eventually(lambda: process.poll() is not None, within_s=600, text=log.read_text)
        assert process.returncode == 0, log.read_text()
    return environment


@contextmanager
def served(environment: dict[str, str], log: Path, *options: str) -> Iterator[str]:
    """`agentrl dashboard` on a free port: its address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = str(ROOT / "configs" / "quickstart.toml")

    def up() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return True
        except OSError:
            return False

    arguments = ("dashboard", config, "--port", str(port), *options)
    with agentrl(*arguments, environment=environment, output=log):
        eventually(up, within_s=60, text=log.read_text)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE_MS)
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def shown(
    run: dict[str, str], browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shown]:
    """The dashboard, and a browser."""
    with served(run, tmp_path_factory.mktemp("dashboard") / "log") as root:
        yield Shown(browser, root)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_drawn_without_an_error(shown: Shown, scheme: str) -> None:
    grounds = set()
    for each in PAGES:
        page = shown.open(address(each.name, run=NAME), scheme)
        body = page.locator('[data-testid="stMain"]')
        expect(body).to_contain_text(SAYS[each.name])
        expect(page).to_have_title(f"{each.name} · {NAME} · AgentRL")
        icon = page.locator("link[rel~=icon]").get_attribute("href") or ""
        assert icon.startswith("data:image/svg+xml"), icon
        grounds.add(
            page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
        )
        page.context.close()
    (ground,) = grounds
    brightness = sum(map(int, re.findall(r"\d+", ground)[:3])) / 3
    assert (brightness > 128) == (scheme == "light"), ground


def test_from_an_episode_to_its_update_its_siblings_and_back(shown: Shown) -> None:
    page = shown.open(f"/episodes?run={NAME}&learned_at=1")
    first = page.locator(".rows a").first
    named = first.inner_text()
    first.click()
    expect(heading(page)).to_have_text(f"Episode {named}")
    settled(page)
    expect(page.locator(".rows").nth(1)).to_contain_text("update to v1, committed")
    expect(page.locator(".text span[title]").nth(5)).to_be_visible()  # tokens with their words
    expect(page.locator(".text").first).to_contain_text("<|user|>")
    sibling = page.locator("table.rows").last.locator("tr:not(.here) a").first
    other = sibling.inner_text()
    assert other != named
    sibling.click()
    expect(heading(page)).to_have_text(f"Episode {other}")
    settled(page)
    page.locator(".rows").nth(1).locator("a").first.click()
    expect(heading(page)).to_have_text("Checkpoints")
    settled(page)
    expect(page.locator("h3").first).to_have_text("Version 1")
    page.get_by_text("episodes that its update trained on").click()
    expect(heading(page)).to_have_text("Episodes")
    settled(page)
    assert f"run={NAME}" in page.url
    assert "learned_at=1" in page.url
    expect(page.locator(".rows").first).to_contain_text(other)
    page.context.close()


def test_a_keyboard_is_enough(shown: Shown) -> None:
    page = shown.open("/")
    focus(page, "Episodes")
    page.keyboard.press("Enter")
    expect(heading(page)).to_have_text("Episodes")
    settled(page)
    named = page.locator(".rows a").first.inner_text()
    focus(page, named)
    page.keyboard.press("Enter")
    expect(heading(page)).to_have_text(f"Episode {named}")
    settled(page)
    page.context.close()


def focus(page: Page, text: str) -> None:
    """Press Tab until what has the focus reads so; a page that is drawn again begins anew."""
    for _ in range(240):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText") and text in str(
            page.evaluate("document.activeElement.innerText")
        ).split("\n"):
            return
    pytest.fail(f"no Tab leads to {text!r}")


def test_the_filter_finds_and_stays_in_the_address(shown: Shown) -> None:
    page = shown.open(f"/episodes?run={NAME}")
    page.get_by_label("Text in a call or answer").fill("select")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url(re.compile("words=select"))
    expect(page.locator(".rows").first).not_to_contain_text("alfworld")
    expect(page.locator(".rows").first).to_contain_text("dbbench")
    settled(page)
    page.context.close()


def test_a_statement_is_run_and_its_rows_are_taken_along(shown: Shown, tmp_path: Path) -> None:
    page = shown.open(f"/sql?run={NAME}")
    page.get_by_label("Statement").fill("SELECT version, state FROM updates ORDER BY version")
    page.get_by_role("button", name="Run", exact=True).click()
    with page.expect_download() as download:
        page.get_by_text("Download CSV").click()
    download.value.save_as(tmp_path / "answer.csv")
    lines = (tmp_path / "answer.csv").read_text().splitlines()
    assert lines == ["version,state", "1,committed", "2,committed", "3,committed"]
    page.context.close()


def test_a_token_is_asked_for_once_by_each_browser(
    browser: Browser, url: str, tmp_path: Path
) -> None:
    store, run_id = begun(url, NAME)
    trained(store, run_id, 2)
    store.close()
    environment = {
        "AGENTRL__RUN__NAME": NAME,
        "AGENTRL__STORE__URL": url,
        "DASHBOARD_TOKEN": "a-token-of-a-test",
    }
    options = ("--host", "0.0.0.0", "--token-env", "DASHBOARD_TOKEN")  # noqa: S104
    with served(environment, tmp_path / "log", *options) as root:
        page = Shown(browser, root).open(f"/episodes?run={NAME}")
        expect(heading(page)).to_have_text("AgentRL")
        page.get_by_label("Token", exact=True).fill("another")
        page.keyboard.press("Enter")
        expect(page.get_by_text("Wrong token.")).to_be_visible()
        assert page.locator(".rows").count() == 0
        page.wait_for_timeout(1000 * PAUSE_S)
        page.get_by_label("Token", exact=True).fill("a-token-of-a-test")
        page.keyboard.press("Enter")
        expect(heading(page)).to_have_text("Episodes")
        settled(page)
        first = page.locator(".rows a").first  # a link: the page is loaded anew
        named = first.inner_text()
        first.click()
        expect(heading(page)).to_have_text(f"Episode {named}")
        settled(page)
        cookies = {each["name"]: each["value"] for each in page.context.cookies()}
        assert re.fullmatch("[0-9a-f]{64}", cookies[COOKIE])
        page.context.close()
        other = Shown(browser, root).open("/")
        expect(heading(other)).to_have_text("AgentRL")
        other.context.close()
