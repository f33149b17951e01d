"""Streamlit in this process, with what pages need at hand before it listens.

    imports, the store ─▶ Streamlit listens ─▶ script/app.py, once for each look of a browser

A page's script would import and open the same while the first browser waits.
"""

import importlib
import importlib.util
import inspect
import os
from collections.abc import Sequence
from functools import cache

from streamlit.web import cli

from agentrl.core.http.access import bracket_ipv6
from agentrl.db.admin.readonly import open_history
from agentrl.db.store import Store

PRELOAD = (
    "agentrl.dashboard.navigation",
    "pandas",
    "pyarrow",
)  # pages; what Streamlit packs a chart with


@cache
def history(url: str) -> Store:
    """Return the read-only store that all sessions share. Raises StoreError."""
    return open_history(url)


def trust_proxies(proxies: Sequence[str]) -> None:
    """Trust only these addresses and networks to report a browser's address.

    Streamlit's server, uvicorn, reads the variable; without it, it would trust all of loopback.
    """
    os.environ["FORWARDED_ALLOW_IPS"] = ",".join(proxies)


def serve(page_arguments: Sequence[str], port: int, host: str) -> None:
    """Run Streamlit until a signal. `page_arguments`: the arguments of dashboard/script/app.py."""
    for name in PRELOAD:
        importlib.import_module(name)
    inspect.stack()  # Streamlit asks for it once, and then each module's file is looked for
    cli.main(streamlit_options(page_arguments, port, host), prog_name="streamlit")


def streamlit_options(page_arguments: Sequence[str], port: int, host: str) -> list[str]:
    """Return the command-line arguments for `streamlit`."""
    script = importlib.util.find_spec("agentrl.dashboard.script.app")
    settings = {
        "--server.address": host,
        "--server.port": str(port),
        "--server.headless": "true",
        "--server.fileWatcherType": "none",
        "--browser.gatherUsageStats": "false",
        "--client.toolbarMode": "minimal",
    }
    if (
        bracket_ipv6(host) != host
    ):  # else Streamlit asks the internet which address this machine has
        settings["--browser.serverAddress"] = bracket_ipv6(host)
    written = [f"{name}={value}" for name, value in settings.items()]
    origin = str(script.origin) if script else ""
    return ["run", origin, *written, "--", *page_arguments]
