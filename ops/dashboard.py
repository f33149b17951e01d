"""`agentrl dashboard`: Streamlit in this process; on loopback unless told otherwise."""

import importlib.util
import socket
from pathlib import Path

from core import loading
from core.access import loopback
from core.config import secret
from core.errors import AgentRLError, ConfigError

HOST = "127.0.0.1"


def start(path: Path, port: int, host: str = HOST, token_env: str = "") -> None:
    """Be the dashboard. `token_env`: the variable with the token that it asks for.

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
    from dashboard.serve import history, serve

    history(config.store_url())
    refuse_taken(port, host)
    print(f"http://{host}:{port} shows run {config.run.name}; Ctrl-C ends it", flush=True)
    serve([str(path), token_env] if token_env else [str(path)], port, host)


def refuse_taken(port: int, host: str = HOST) -> None:
    """Raise AgentRLError for a port that cannot be had."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise AgentRLError(
            f"port {port} cannot be had: {error.strerror}", mend="choose another --port"
        ) from error
