"""Describes how a process of a run exited."""

import os
import signal
from pathlib import Path

END = 64 * 1024  # bytes of a log in which its last line is looked for
FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # what its log says last is not why


def exit_text(code: int) -> str:
    """Describe an exit code of subprocess; a negative code is a signal."""
    if code >= 0:
        return f"exited with code {code}"
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL; out of memory?)"
    names = {each.value: each.name for each in signal.Signals}
    return f"was stopped by {names.get(-code, f'signal {-code}')}"


def restart_line(code: int, words: str) -> str:
    """Describe a restart. `words`: last line of the log."""
    text = f"{exit_text(code)}; restarting"
    return text if code in FROM_OUTSIDE else f"{text}; last line of its log: {words}"


def cause(code: int, words: str) -> str:
    """Return the most likely reason of an exit."""
    return exit_text(code) if code in FROM_OUTSIDE else words


def last_line(path: Path) -> str:
    """Return the last line of a log that is not blank. Only the end of the log is read.

    Someone may have deleted the log: then the text says why it cannot be read.
    """
    try:
        with path.open("rb") as log:
            log.seek(-min(END, path.stat().st_size), os.SEEK_END)
            text = log.read().decode(errors="replace")
    except OSError as error:
        return f"the log cannot be read: {error.strerror}"
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "the log is empty"
