"""Who may look, where a token is asked for: whoever has shown it to this browser.

    the token, typed once ─▶ a session, kept here with its end ─▶ its id in a cookie ─▶ later pages

An id is made by chance: it tells nothing of the token, and opens this process alone, until the
session's end. A page is drawn for no one else, and no page of nobody reads the store.
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
class Answer:
    """`session`: the id of one that began; empty: none did. `wait_s`: 0 where the token was looked
    at, else so long none will be.
    """

    session: str = ""
    wait_s: float = 0.0


class Doorkeeper:
    """The sessions of those who have shown a token, and each address's pause after wrong ones.

    One who shows wrong tokens waits alone, and never longer than LONGEST_S.

    For all threads. `now`: seconds of a clock that never goes back.
    """

    def __init__(self, token: str, *, most: int = MOST) -> None:
        """`most`: sessions at a time, and addresses whose pauses are remembered."""
        self._most = most
        self._token = token.encode()
        self._lock = threading.Lock()
        self._ends: dict[str, float] = {}  # by the hash of an id, the first to end first
        self._pauses: dict[str, tuple[float, float]] = {}  # seconds and end, by address

    def show(self, written: str, address: str, now: float) -> Answer:
        """Begin a session for the token. After a wrong one the address waits, longer each time."""
        with self._lock:
            pause_s, until = self._pauses.get(address, (PAUSE_S / 2, -math.inf))
            if now < until:
                return Answer(wait_s=until - now)
            self._pauses.pop(address, None)
            if not hmac.compare_digest(written.encode(), self._token):
                while len(self._pauses) >= self._most:
                    del self._pauses[next(iter(self._pauses))]
                pause_s = min(2 * pause_s, LONGEST_S)
                self._pauses[address] = pause_s, now + pause_s
                return Answer()
            while len(self._ends) >= self._most:
                del self._ends[next(iter(self._ends))]
            session = secrets.token_hex(32)
            self._ends[_hash(session)] = now + LASTS_S
            return Answer(session)

    def knows(self, sessions: str, now: float) -> bool:
        """Whether one of these ids, joined by dots, is of a session that goes on."""
        with self._lock:
            return any(self._ends.get(_hash(each), now) > now for each in sessions.split("."))


def _hash(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()


@cache
def keeper_of(token: str) -> Doorkeeper:
    """The one of this process."""
    return Doorkeeper(token)


def admitted(token: str) -> bool:
    """Whether this browser has shown the token."""
    keeper, now = keeper_of(token), time.monotonic()
    if keeper.knows(st.context.cookies.get(COOKIE, ""), now):
        return True
    session = st.session_state.get(SESSION, "")
    if not keeper.knows(session, now):
        return False
    st.html(keep(session), unsafe_allow_javascript=True)
    return True


def keep(session: str) -> str:
    """HTML that adds an id, hexadecimal, to the browser's cookie until that is closed.

    Beside those of other dashboards on this host: cookies know no ports.
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
    """Who shows a token: the peer, or what a proxy of `dashboard.proxies` says of it."""
    return st.context.ip_address or "loopback"


def ask(token: str) -> None:
    """The form in place of every page."""
    st.title("AgentRL")
    with st.form("token"):
        written = st.text_input("Token", type="password", help="Of whoever started the dashboard.")
        sent = st.form_submit_button("Look", type="primary")
    if not sent:
        return
    address = address_of_browser()
    answer = keeper_of(token).show(written.strip(), address, time.monotonic())
    if answer.session:
        st.session_state[SESSION] = answer.session
        st.rerun()
    elif answer.wait_s:
        st.error(
            f"A wrong token came from {address}: none from there is looked at for "
            f"{math.ceil(answer.wait_s)} s."
        )
    else:
        log.warning("A wrong token was shown", address=address)
        st.error("That is not the token.")
