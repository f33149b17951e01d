"""Access to servers: loopback addresses and bearer tokens."""

import hmac
import ipaddress
import socket

from agentrl.core.errors import ConfigError


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def name_setting(section: str, key: str, *, options: bool) -> str:
    """Return how a person sets it: by an option of the command, or by a configuration's key."""
    return f"--{key.replace('_', '-')}" if options else f"{section}.{key}"


def require_token(section: str, host: str, *, guarded: bool, options: bool = False) -> None:
    """Raise ConfigError if a server would listen off loopback without a bearer token.

    `section`: of the configuration, with `host` and `token_env`. `options`: the command has options
    of these names instead.
    """
    if not guarded and not is_loopback(host):
        setting = name_setting(section, "token_env", options=options)
        raise ConfigError(
            f"the {section} server needs a bearer token: {host} is not loopback",
            hint=f"set {setting} to the name of the variable that contains the token",
        )


def bracket_ipv6(host: str) -> str:
    """Return the host name for clients: of this machine if the server listens everywhere."""
    return socket.gethostname() if host in ("0.0.0.0", "::", "") else host  # noqa: S104


def origin(host: str, port: int) -> str:
    """Return the URL of a server, without a path."""
    name = bracket_ipv6(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def admits(token: str, authorization: str) -> bool:
    """Return whether the header contains the token. An empty token disables authentication."""
    return not token or hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())
