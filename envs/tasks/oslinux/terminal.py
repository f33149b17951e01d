"""What a command wrote, as the agent reads it: control sequences stripped, cut."""

import re
from collections.abc import Callable

MAX_TEXT = 800  # characters; what is longer is cut to KEPT
KEPT = 780
TRUNCATED = "\n[truncated because the output is too long]"
OUTPUT = "The output of the OS:\n\n"
EMPTY = "The output of the OS is empty."
LATE = "\n[the command was stopped after {:g} seconds]"
ENDED = "\n[the shell has ended; the next command runs in a new one]"

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # strings
    r"|\x1b[ -/]*[0-~]?"  # the other escapes
    r"|\r(?=\n)"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f\x80-\x9f]"
)
# What an interactive bash without a terminal says of a command that a signal ended.
_NO_TERMINAL = re.compile(r"bash: \[\d+: \d+ \(\d+\)\] tcsetattr: [^\n]*\n")


def cut(text: str) -> str:
    """Cut a text to MAX_TEXT characters: KEPT of them and a note."""
    return text if len(text) <= MAX_TEXT else text[:KEPT] + TRUNCATED


def observation(
    text: str,
    *,
    late_s: float | None = None,
    ended: bool = False,
    shorten: Callable[[str], str] = cut,
) -> str:
    """Return the reply to a command. `late_s`: the limit at which it was stopped."""
    shown = shorten(strip_control(text))
    if late_s is not None:
        shown = shown.rstrip("\n") + LATE.format(late_s)
    if ended:
        shown = shown.rstrip("\n") + ENDED
    return OUTPUT + shown.removeprefix("\n") if shown else EMPTY


def strip_control(text: str) -> str:
    """Strip control sequences, and control characters but tab, line feed and carriage return."""
    return _NO_TERMINAL.sub("", _CONTROL.sub("", text))


def output(reply: str) -> str:
    """Return the text from which `observation` made a reply, as far as it was not cut."""
    return reply.removeprefix(OUTPUT) if reply.startswith(OUTPUT) else ""
