"""How a process of a run ended, in words for a person."""

import os
import signal
from pathlib import Path

END = 64 * 1024  # bytes of a log in which its last line is looked for
FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # what its log says last is not why


def how(code: int) -> str:
    """`code`: as subprocess gives it, a signal's number below zero."""
    if code >= 0:
        return f"ended with {code}"
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL; out of memory?)"
    names = {each.value: each.name for each in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


def restarted(code: int, words: str) -> str:
    """What is told of one that starts again; `words`: the last line of its log."""
    told = f"{how(code)}, starts again"
    return told if code in FROM_OUTSIDE else f"{told}; its log ends: {words}"


def cause(code: int, words: str) -> str:
    """Why one ended, as well as that can be known."""
    return how(code) if code in FROM_OUTSIDE else words


def last_line(path: Path) -> str:
    """The last line of a log that says something; only the end of the log is read."""
    with path.open("rb") as log:
        log.seek(-min(END, path.stat().st_size), os.SEEK_END)
        text = log.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "ended without a word"
