"""Access to servers: loopback addresses and bearer tokens."""

import hmac
import ipaddress
import socket


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bracket_ipv6(host: str) -> str:
    """Return the host name for clients: of this machine if the server listens everywhere."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104


def origin(host: str, port: int) -> str:
    """Return the URL of a server, without a path."""
    name = bracket_ipv6(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def admits(token: str, authorization: str) -> bool:
    """Return whether the header contains the token. An empty token disables authentication."""
    return not token or hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())
