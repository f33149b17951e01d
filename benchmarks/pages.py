"""How long each page of the dashboard takes in Chromium, of a long run: seconds until it stands.

    python benchmarks/pages.py --store URL [--run long] [--repeats 3] [--only PAGE…] [--calm 0]

Of a store that `benchmarks/store.py` has filled. `agentrl dashboard` is started on it as a process
of its own, and every page is opened in headless Chromium, on this machine. Seconds from asking for
the address, or from the click, until all that the page shows is drawn: its title is there, the
script has ended, nothing is stale, a skeleton or a spinner, each chart and table has its picture,
and it stays so for a while (which is not counted).

`cold`: the first page that a dashboard just started draws, in a browser that has cached nothing;
`warm`: the same address once more, in another tab; `moved`: by a click in the menu of an open
session, page after page. `script`: the server's own part of `cold` and `warm`, from the beginning
of the page's script to its end, as the browser hears of it; `processor`: seconds of processor time
of dashboard and browser together, which other load on the machine changes less; `KiB`: over the
WebSocket, warm. `start`: until a dashboard that is started answers. Each is the shortest and the
median.

`--calm`: before each load, wait so many seconds at most until the machine is idle. `others`: the
share of the machine's processor time that went to none of dashboard, browser and this program
while a page was loaded, cold and warm: of the database and of what has nothing to do with it.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from helpers.chromium_driver import CLICK, PATIENCE_S, Heard, chromium, stood
from playwright.sync_api import Browser, BrowserContext

from agentrl.core.processes.process import agentrl_command
from agentrl.dashboard.links import address
from agentrl.dashboard.navigation import PAGES

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "quickstart.toml"
TITLES = {
    "Run": "{run}",
    "Tasks": "Tasks of {run}",
    "Episodes": "Episodes",
    "Checkpoints": "Checkpoints",
    "Compare": "{run} and other runs",
    "Accounting": "Accounting of {run}",
    "SQL": "SQL",
}
IDLE = 0.15  # of the machine's processor time, for half a second: it is calm


@dataclass(frozen=True)
class Opened:
    """How long a page took, wall clock and processor, and what it heard."""

    seconds: float
    processor_s: float
    others: float
    heard: Heard


@dataclass(frozen=True)
class Place:
    """A run of a store, and the browser that looks at it. `calm_s`: to wait for an idle machine."""

    browser: Browser
    store: str
    run: str
    calm_s: float = 0.0


@dataclass(frozen=True)
class Server:
    """A dashboard: its process, its address, and the seconds until it answered."""

    pid: int
    root: str
    start_s: float


Figures = dict[str, dict[str, list[float]]]  # by page and kind


@contextmanager
def dashboard(place: Place) -> Iterator[Server]:
    """`agentrl dashboard`, just started."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"AGENTRL__STORE__URL": place.store, "AGENTRL__RUN__NAME": place.run}
    command = agentrl_command("dashboard", str(CONFIG), "--port", str(port))
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.DEVNULL
    )
    try:
        root = f"http://127.0.0.1:{port}"
        while not answers(f"{root}/_stcore/health"):
            if process.poll() is not None or time.perf_counter() - began > PATIENCE_S:
                raise SystemExit("the dashboard did not start")
            time.sleep(0.02)
        yield Server(process.pid, root, time.perf_counter() - began)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - ours
        return bool(answer.status == 200)
    return False


@contextmanager
def context(place: Place) -> Iterator[BrowserContext]:
    """A browser that has cached nothing."""
    made = place.browser.new_context(viewport={"width": 1280, "height": 900})
    made.set_default_timeout(1000 * PATIENCE_S)
    try:
        yield made
    finally:
        made.close()


def processor_s(place: Place, server: Server) -> float:
    """Seconds of processor time of the dashboard and of the browser's processes until now."""
    used = psutil.Process(server.pid).cpu_times()
    session = place.browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return float(used.user + used.system + sum(each["cpuTime"] for each in processes))


def busy_s() -> float:
    """Seconds of processor time of the whole machine until now."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def calm(patience_s: float) -> None:
    """Wait until the machine is idle, so many seconds at most."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if psutil.cpu_percent(0.5) < 100 * IDLE:
            return


def opened(place: Place, server: Server, inside: BrowserContext, name: str) -> Opened:
    """A page's address in a tab of its own, until it stands."""
    page, heard = inside.new_page(), Heard()
    network = inside.new_cdp_session(page)
    network.on("Network.webSocketFrameReceived", heard.frame)
    network.send("Network.enable")
    calm(place.calm_s)
    began, busy, mine = time.perf_counter(), busy_s(), time.process_time()
    before = processor_s(place, server)
    page.goto(server.root + address(name, run=place.run))
    seconds = stood(page, TITLES[name].format(run=place.run))
    used = processor_s(place, server) - before
    whole = (time.perf_counter() - began) * (os.cpu_count() or 1)
    others = busy_s() - busy - used - (time.process_time() - mine)
    page.close()
    return Opened(seconds, used, others / whole, heard)


def loaded(place: Place, name: str, figures: Figures) -> None:
    """One page, cold and warm."""
    with dashboard(place) as server, context(place) as inside:
        both = {kind: opened(place, server, inside, name) for kind in ("cold", "warm")}
    for kind, each in both.items():
        figures[name].setdefault(kind, []).append(each.seconds)
        figures[name].setdefault(f"script, {kind}", []).append(each.heard.script_s)
        figures[name].setdefault(f"processor, {kind}", []).append(each.processor_s)
        figures[name].setdefault(f"others, {kind}", []).append(each.others)
        told = f"{each.seconds:.2f} s, script {each.heard.script_s:.2f} s, others {each.others:.0%}"
        print(f"{name}, {kind}: {told}", file=sys.stderr, flush=True)
    figures[name].setdefault("KiB", []).append(both["warm"].heard.size / 1024)
    figures[name].setdefault("start", []).append(server.start_s)


def toured(place: Place, names: Sequence[str], figures: Figures) -> None:
    """Page after page by the menu, in one session, from a page that is not the first of them."""
    first = next(each.name for each in reversed(PAGES) if each.name != names[0])
    with dashboard(place) as server, context(place) as inside:
        page = inside.new_page()
        page.goto(server.root + address(first, run=place.run))
        stood(page, TITLES[first].format(run=place.run))
        for name in names:
            calm(place.calm_s)
            began = float(page.evaluate(CLICK, name))
            seconds = stood(page, TITLES[name].format(run=place.run), began)
            figures[name].setdefault("moved", []).append(seconds)


def summary(found: Sequence[float]) -> tuple[float, float]:
    return round(min(found), 2), round(statistics.median(found), 2)


def main() -> None:
    """Open each page, print."""
    known = [each.name for each in PAGES]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--run", default="long")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=known, default=known)
    parser.add_argument("--calm", type=float, default=0.0)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started ends
    figures: Figures = {name: {} for name in given.only}
    with chromium() as browser:
        place = Place(browser, given.store, given.run, given.calm)
        for _ in range(given.repeats):
            for name in given.only:
                loaded(place, name, figures)
            toured(place, given.only, figures)
    rounded = {
        name: {kind: summary(found) for kind, found in kinds.items()}
        for name, kinds in figures.items()
    }
    print(json.dumps(rounded | {"load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
