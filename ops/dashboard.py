"""`agentrl dashboard`: Streamlit in this process's place; on loopback unless told otherwise."""

import importlib.util
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from core import loading
from core.access import loopback
from core.config import secret
from core.errors import AgentRLError, ConfigError
from db.readonly import open_history

HOST = "127.0.0.1"


def start(path: Path, port: int, host: str = HOST, token_env: str = "") -> None:
    """Become the dashboard. `token_env`: the variable with the token that it asks for.

    Raises AgentRLError for a missing package, store or free port; ConfigError off loopback without
    a token.
    """
    if not secret(token_env) and not loopback(host):
        raise ConfigError(
            f"dashboard on {host}: a token is required off loopback",
            mend="name its variable: --token-env VARIABLE",
        )
    config = loading.load(path)
    found = importlib.util.find_spec("streamlit")
    if found is None:
        raise AgentRLError(
            "the dashboard needs streamlit", mend="pip install 'agentrl-system[dashboard]'"
        )
    open_history(config.store_url()).close()
    refuse_taken(port, host)
    print(f"http://{host}:{port} shows run {config.run.name}; Ctrl-C ends it", flush=True)
    given = [str(path), token_env] if token_env else [str(path)]
    os.execv(sys.executable, command(given, port, host))  # noqa: S606 - no shell is the point


def command(given: Sequence[str], port: int, host: str = HOST) -> list[str]:
    """Streamlit's command line. `given`: the arguments of dashboard/script/app.py."""
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
    return [sys.executable, "-m", "streamlit", "run", origin, *settings, "--", *given]


def refuse_taken(port: int, host: str = HOST) -> None:
    """Raise AgentRLError for a port that cannot be had."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise AgentRLError(
            f"port {port} cannot be had: {error.strerror}", mend="choose another --port"
        ) from error
