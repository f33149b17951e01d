"""Drive Chromium for `pages.py`: when a page is complete, and what its WebSocket received."""

import base64
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

HELD_S = 0.3  # as long a page must stand
PATIENCE_S = 120.0  # for a page, and for a dashboard's start

# Milliseconds at which the page began to stand, once it has stood for `held`; else false.
STANDS = """({title, held, began}) => {
  const app = document.querySelector('[data-testid="stApp"]');
  const main = document.querySelector('[data-testid="stMain"]');
  const unfinished = '[data-stale="true"], [data-testid="stSkeleton"],'
    + '[data-testid="stAppSkeleton"], [data-testid="stSpinner"]';
  const pictured = '[data-testid="stVegaLiteChart"], [data-testid="stDataFrame"]';
  const drawn = each => !each.checkVisibility()
    || [...each.querySelectorAll('canvas, svg')].some(one => one.clientWidth > 0);
  const stands = app?.dataset.testScriptState === 'notRunning'
    && main?.querySelector('h1')?.innerText.trim() === title
    && !main.querySelector(unfinished)
    && [...main.querySelectorAll(pictured)].every(drawn);
  const now = performance.now();
  if (!stands || window.standsFor !== title) window.standsSince = now;
  window.standsFor = stands ? title : '';
  return stands && now - window.standsSince >= held && window.standsSince - began;
}"""
CLICK = """name => {
  const link = [...document.querySelectorAll('[data-testid="stSidebarNavLink"]')]
    .find(each => each.innerText.includes(name));
  const now = performance.now();
  window.standsFor = '';
  link.click();
  return now;
}"""


@dataclass
class Heard:
    """What the browser heard over the WebSocket: bytes, and when scripts began and ended, s."""

    size: int = 0
    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    def frame(self, event: Mapping[str, Any]) -> None:
        """An event `Network.webSocketFrameReceived` of Chromium."""
        body = base64.b64decode(event["response"]["payloadData"])
        self.size += len(body)
        kind = ForwardMsg.FromString(body).WhichOneof("type")
        if kind == "new_session":
            self.began.append(event["timestamp"])
        elif kind == "script_finished":
            self.ended.append(event["timestamp"])

    @property
    def script_s(self) -> float:
        """Seconds of the page's first script."""
        return self.ended[0] - self.began[0]


def stood(page: Page, title: str, began: float = 0.0) -> float:
    """Seconds from `began` (milliseconds of the page's clock) until the page stood."""
    given = {"title": title, "held": 1000 * HELD_S, "began": began}
    return float(page.wait_for_function(STANDS, arg=given).json_value()) / 1000


@contextmanager
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield launched
        finally:
            launched.close()
