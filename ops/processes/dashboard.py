"""`agentrl dashboard`: runs Streamlit in this process, by default on loopback."""

import importlib.util
import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from agentrl.core import config_loading, logging
from agentrl.core.config.secrets import secret
from agentrl.core.errors import AgentRLError, ConfigError, install_hint
from agentrl.core.http.access import is_loopback, origin
from agentrl.db.admin.readonly import DatabaseAbsent

HOST = "127.0.0.1"
LEAST = 16  # characters of a token off loopback


def run(path: Path, port: int, host: str = HOST, token_env: str = "") -> None:
    """Serve the dashboard. `token_env`: variable with the access token.

    Raises AgentRLError for a missing package, database or free port, and ConfigError for a missing
    token if the address is not loopback.
    """
    if len(secret(token_env)) < LEAST and not is_loopback(host):
        raise ConfigError(
            f"the dashboard needs a token of {LEAST} or more characters: {host} is not loopback",
            hint="create one with `openssl rand -hex 16`, export it, and pass --token-env VARIABLE",
        )
    config = config_loading.load(path)
    logging.configure(
        "dashboard", level=config.logs.level, form=config.logs.format, run=config.run.name
    )
    found = importlib.util.find_spec("streamlit")
    if found is None:
        raise AgentRLError(
            "the dashboard needs streamlit",
            hint=install_hint("dashboard"),
        )
    from agentrl.dashboard.streamlit_server import history, serve, trust_proxies

    check_proxies(config.dashboard.proxies)
    trust_proxies(config.dashboard.proxies)
    with suppress(DatabaseAbsent):  # the pages say how to start the run
        history(config.store_url())
    refuse_taken(port, host)
    print(f"{origin(host, port)} shows run {config.run.name}; press Ctrl-C to stop", flush=True)
    serve([str(path), token_env] if token_env else [str(path)], port, host)


def check_proxies(proxies: Sequence[str]) -> None:
    """Raise ConfigError if an entry is neither an address nor a network."""
    for each in proxies:
        try:
            ipaddress.ip_network(each)
        except ValueError as error:
            raise ConfigError(
                f"dashboard.proxies: {error}",
                hint="use an address, or a network such as 10.0.0.0/8",
            ) from error


def refuse_taken(port: int, host: str = HOST) -> None:
    """Raise AgentRLError if the port is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise AgentRLError(
            f"the dashboard cannot listen on {host}:{port}: {error.strerror}",
            hint="choose another --port, or a --host of this machine",
        ) from error
