"""What a command wrote, as the agent reads it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.tasks.oslinux.terminal import (
    EMPTY,
    KEPT,
    MAX_TEXT,
    OUTPUT,
    TRUNCATED,
    observation,
    output,
    strip_control,
)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[01;34mdocs\x1b[0m\r\n", "docs\n"),
        ("\x1b]0;root@host: ~\x07$ ", "$ "),
        ("\x1b[?2004hready\x1b[?2004l", "ready"),
        ("a\x07b\x00c\x1b(Bd", "abcd"),
        ("10%\r20%\n", "10%\r20%\n"),
        ("cut off \x1b[3", "cut off 3"),
        ("y\nbash: [12: 1 (255)] tcsetattr: Inappropriate ioctl for device\n", "y\n"),
        ("é\t漢\n", "é\t漢\n"),
    ],
)
def test_control_sequences_are_stripped(raw: str, shown: str) -> None:
    assert strip_control(raw) == shown


def test_output_is_shown_after_a_heading_and_nothing_is_told_as_such() -> None:
    assert observation("a\nb\n") == "The output of the OS:\n\na\nb\n"
    assert observation("\x1b[0m") == "The output of the OS is empty."


@pytest.mark.parametrize(("length", "shown"), [(800, "x" * 800), (801, "x" * 780 + TRUNCATED)])
def test_more_than_800_characters_are_cut_to_780(length: int, shown: str) -> None:
    assert observation("x" * length) == OUTPUT + shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"late_s": 30.0}, "a\n[the command was stopped after 30 seconds]"),
        ({"ended": True}, "a\n[the shell has ended; the next command runs in a new one]"),
    ],
)
def test_what_happened_to_the_command_or_its_shell_is_told(
    given: dict[str, Any], shown: str
) -> None:
    assert observation("a\n\n", **given) == OUTPUT + shown
    assert observation("", **given) == OUTPUT + shown.removeprefix("a\n")


def test_an_experts_reading_of_a_reply_is_the_output() -> None:
    assert output(observation("7\n")) == "7\n"
    assert output(EMPTY) == ""


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_whatever_was_written_the_reply_is_short_and_printable(text: str) -> None:
    reply = observation(text)
    assert len(reply) <= len(OUTPUT) + max(MAX_TEXT, KEPT + len(TRUNCATED))
    assert not set(reply) & {chr(code) for code in (*range(9), 11, 12, *range(14, 32), 127)}
