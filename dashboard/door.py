"""Who may look, where a token is asked for: whoever has shown it to this browser.

    the token, typed once ─▶ a cookie with its mark ─▶ every later page of this browser

The mark is made of the token and tells nobody what it is. A page is drawn for no one else, and no
page of nobody reads the store.
"""

import hashlib
import hmac

import streamlit as st

COOKIE = "agentrl-dashboard"
SHOWN = "mark of the token"  # of the session's state


def admitted(token: str) -> bool:
    """Whether this browser has shown the token."""
    mark = mark_of(token)
    if carried(st.context.cookies.get(COOKIE, ""), mark):
        return True
    if st.session_state.get(SHOWN) == mark:
        st.html(keep(mark), unsafe_allow_javascript=True)
        return True
    return False


def mark_of(token: str) -> str:
    """What the cookie says of who has shown the token."""
    return hmac.new(token.encode(), b"agentrl dashboard", hashlib.sha256).hexdigest()


def carried(cookie: str, mark: str) -> bool:
    """Whether the cookie has the mark, among those of other dashboards on this host."""
    return any(hmac.compare_digest(each.encode(), mark.encode()) for each in cookie.split("."))


def keep(mark: str) -> str:
    """HTML that adds the mark to the browser's cookie until it is closed. `mark`: hexadecimal."""
    return (
        "<script>(() => {"
        f"const had = document.cookie.match(/(?:^|; ){COOKIE}=([0-9a-f.]*)/);"
        f"const marks = (had ? had[1].split('.') : []).filter(m => m && m !== '{mark}');"
        f"document.cookie = '{COOKIE}=' + [...marks.slice(-7), '{mark}'].join('.')"
        " + '; path=/; SameSite=Strict';"
        "})()</script>"
    )


def ask(token: str) -> None:
    """The form in place of every page."""
    st.title("AgentRL")
    with st.form("token"):
        written = st.text_input("Token", type="password", help="Of whoever started the dashboard.")
        sent = st.form_submit_button("Look", type="primary")
    if not sent:
        return
    if hmac.compare_digest(written.strip().encode(), token.encode()):
        st.session_state[SHOWN] = mark_of(token)
        st.rerun()
    st.error("That is not the token.")
