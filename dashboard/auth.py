"""Login with a token.

    the token, typed once ─▶ a session with an expiry time ─▶ its id in a cookie ─▶ later pages

A session id is random: it reveals nothing about the token and is valid in this process only, until
the session expires. Unauthenticated requests get no page and never query the database.
"""

import hashlib
import hmac
import math
import secrets
import threading
import time
from dataclasses import dataclass
from functools import cache

import streamlit as st

from agentrl.core.logging import get_logger

COOKIE = "agentrl-dashboard"
SESSION = "id of the session"  # of Streamlit's state
LASTS_S = 12 * 3600.0
MOST = 1_000  # sessions; a further one ends the oldest
PAUSE_S, LONGEST_S = 1.0, 60.0  # of an address: after its first wrong token, after many

log = get_logger()


@dataclass(frozen=True, slots=True)
class LoginResult:
    """Result of a login. `session`: id of the new session, empty if the login failed. `wait_s`:
    seconds for which tokens of this address are not checked; 0 if the token was checked.
    """

    session: str = ""
    wait_s: float = 0.0


class SessionStore:
    """Sessions of logged-in browsers, and a pause per address after wrong tokens.

    A pause affects only its own address and never exceeds LONGEST_S.

    Thread-safe. `now`: seconds of a monotonic clock.
    """

    def __init__(self, token: str, *, most: int = MOST) -> None:
        """`most`: largest number of sessions, and of addresses whose pauses are remembered."""
        self._most = most
        self._token = token.encode()
        self._lock = threading.Lock()
        self._ends: dict[str, float] = {}  # by the hash of an id, the first to end first
        self._pauses: dict[str, tuple[float, float]] = {}  # seconds and end, by address

    def log_in(self, written: str, address: str, now: float) -> LoginResult:
        """Start a session if the token is right. Each wrong token doubles the address's pause."""
        with self._lock:
            pause_s, until = self._pauses.get(address, (PAUSE_S / 2, -math.inf))
            if now < until:
                return LoginResult(wait_s=until - now)
            self._pauses.pop(address, None)
            if not hmac.compare_digest(written.encode(), self._token):
                while len(self._pauses) >= self._most:
                    del self._pauses[next(iter(self._pauses))]
                pause_s = min(2 * pause_s, LONGEST_S)
                self._pauses[address] = pause_s, now + pause_s
                return LoginResult()
            while len(self._ends) >= self._most:
                del self._ends[next(iter(self._ends))]
            session = secrets.token_hex(32)
            self._ends[_hash(session)] = now + LASTS_S
            return LoginResult(session)

    def is_live(self, sessions: str, now: float) -> bool:
        """Return whether one of these session ids, joined by dots, is valid."""
        with self._lock:
            return any(self._ends.get(_hash(each), now) > now for each in sessions.split("."))


def _hash(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()


@cache
def session_store(token: str) -> SessionStore:
    """Return the session store of this process."""
    return SessionStore(token)


def is_admitted(token: str) -> bool:
    """Return whether this browser is logged in."""
    store, now = session_store(token), time.monotonic()
    if store.is_live(st.context.cookies.get(COOKIE, ""), now):
        return True
    session = st.session_state.get(SESSION, "")
    if not store.is_live(session, now):
        return False
    st.html(cookie_script(session), unsafe_allow_javascript=True)
    return True


def cookie_script(session: str) -> str:
    """Return HTML that adds a hexadecimal session id to the browser's session cookie.

    Ids of other dashboards on this host are kept, because cookies are shared between ports.
    """
    return (
        "<script>(() => {"
        f"const had = document.cookie.match(/(?:^|; ){COOKIE}=([0-9a-f.]*)/);"
        f"const ids = (had ? had[1].split('.') : []).filter(id => id && id !== '{session}');"
        f"document.cookie = '{COOKIE}=' + [...ids.slice(-7), '{session}'].join('.')"
        " + '; path=/; SameSite=Strict' + (location.protocol === 'https:' ? '; Secure' : '');"
        "})()</script>"
    )


def address_of_browser() -> str:
    """Return the address of the browser, as a proxy in `dashboard.proxies` reports it."""
    return st.context.ip_address or "loopback"


def ask(token: str) -> None:
    """Show the login form instead of a page."""
    st.title("AgentRL")
    with st.form("token"):
        written = st.text_input(
            "Token", type="password", help="The person who started the dashboard has it."
        )
        sent = st.form_submit_button("Log in", type="primary")
    if not sent:
        return
    address = address_of_browser()
    answer = session_store(token).log_in(written.strip(), address, time.monotonic())
    if answer.session:
        st.session_state[SESSION] = answer.session
        st.rerun()
    elif answer.wait_s:
        st.error(
            f"Too many wrong tokens from {address}. Try again in {math.ceil(answer.wait_s)} s."
        )
    else:
        log.warning("Login with a wrong token", address=address)
        st.error("Wrong token.")
