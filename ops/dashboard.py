"""`agentrl dashboard`: Streamlit in this process's place; on loopback unless told otherwise."""

import importlib.util
import os
import socket
import sys
from pathlib import Path

from core import loading
from core.errors import AgentRLError
from db.readonly import open_history

HOST = "127.0.0.1"


def start(path: Path, port: int, host: str = HOST) -> None:
    """Become the dashboard, which asks nobody for a password.

    Raises AgentRLError for a missing package, store or free port.
    """
    config = loading.load(path)
    found = importlib.util.find_spec("streamlit")
    if found is None:
        raise AgentRLError(
            "the dashboard needs streamlit", mend="pip install 'agentrl-system[dashboard]'"
        )
    open_history(config.store_url()).close()
    refuse_taken(port, host)
    print(f"http://{host}:{port} shows run {config.run.name}; Ctrl-C ends it", flush=True)
    os.execv(sys.executable, command(path, port, host))  # noqa: S606 - no shell is the point


def command(path: Path, port: int, host: str = HOST) -> list[str]:
    """Streamlit's command line."""
    script = importlib.util.find_spec("dashboard.script.app")
    options = {
        "--server.address": host,
        "--server.port": str(port),
        "--server.headless": "true",
        "--server.fileWatcherType": "none",
        "--browser.gatherUsageStats": "false",
        "--client.toolbarMode": "minimal",
    }
    settings = [f"{name}={value}" for name, value in options.items()]
    origin = str(script.origin) if script else ""
    return [sys.executable, "-m", "streamlit", "run", origin, *settings, "--", str(path)]


def refuse_taken(port: int, host: str = HOST) -> None:
    """Raise AgentRLError for a port that cannot be had."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise AgentRLError(
            f"port {port} cannot be had: {error.strerror}", mend="choose another --port"
        ) from error
