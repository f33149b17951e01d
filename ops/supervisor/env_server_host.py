"""Decides which servers of a run are on this machine."""

import socket
from urllib.parse import urlsplit

from agentrl.core.config.config import Config
from agentrl.core.http.access import is_loopback


def hosts_envs(config: Config) -> bool:
    """Whether the env server of the run is this machine's, and ours."""
    if config.envs.names_worker():
        return False
    host = urlsplit(config.envs.url).hostname or ""
    return is_loopback(host) or host in {socket.gethostname().lower(), socket.getfqdn().lower()}
