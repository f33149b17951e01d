"""The process that shows the pages, before the first browser asks."""

import subprocess
import sys
from pathlib import Path

from run_history import begun, trained
from running import ROOT

from agentrl.dashboard.streamlit_server import history, streamlit_options

# Draws each page named, and prints what was imported for it, of packages that were not there.
DRAWN = '''
import importlib, sys
from streamlit.testing.v1 import AppTest
from agentrl.dashboard.streamlit_server import PRELOAD
for name in PRELOAD:
    importlib.import_module(name)
before = {name.partition(".")[0] for name in sys.modules}
url, run_id = sys.argv[1:]
for page in ("run", "tasks", "accounting", "sql"):
    script = f"""
from agentrl.dashboard.pages import {page}
from agentrl.dashboard.streamlit_server import history
{page}.page(history({url!r}), {run_id!r})
"""
    app = AppTest.from_string(script, default_timeout=100).run()
    assert not app.exception, app.exception
print(*sorted({name.partition(".")[0] for name in sys.modules} - before - {"__main__"}))
'''


def test_no_page_imports_a_package_while_a_browser_waits(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 2)
    store.close()
    command = [sys.executable, "-c", DRAWN, url, run_id]
    found = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == []


def test_streamlit_is_told_where_to_listen_and_which_script_to_run() -> None:
    told = streamlit_options(["run.toml", "TOKEN"], 8600, "127.0.0.1")
    assert told[0] == "run"
    assert Path(told[1]).resolve() == ROOT / "dashboard" / "script" / "app.py"
    assert {"--server.port=8600", "--server.address=127.0.0.1"} <= set(told)
    assert told[-3:] == ["--", "run.toml", "TOKEN"]


def test_the_store_is_opened_once_for_all_sessions(url: str) -> None:
    begun(url)[0].close()
    assert history(url) is history(url)
    history(url).close()
