"""Who may reach a server: hosts that are this machine alone, and bearer tokens."""

import hmac
import ipaddress


def loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def admits(token: str, authorization: str) -> bool:
    """Whether the header carries the token; an empty token is asked of nobody."""
    return not token or hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())
