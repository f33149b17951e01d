"""Where a server is and who may reach it: hosts that are this machine alone, bearer tokens."""

import hmac
import ipaddress
import socket


def loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def named(host: str) -> str:
    """What others call it: this machine's name where it listens everywhere."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104


def origin(host: str, port: int) -> str:
    """Its URL without a path."""
    name = named(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def admits(token: str, authorization: str) -> bool:
    """Whether the header carries the token; an empty token is asked of nobody."""
    return not token or hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())
