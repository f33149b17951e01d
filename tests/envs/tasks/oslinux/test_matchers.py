"""The benchmark's match and matchers, with answers worked out by hand."""

import pytest

from agentrl.envs.tasks.oslinux.matchers import MATCHERS, matches
from agentrl.envs.tasks.oslinux.problem import Match


@pytest.mark.parametrize(
    ("name", "answer", "target", "right"),
    [
        ("integer-match", "8", "8\n", True),
        ("integer-match", " 08 ", "8", True),
        ("integer-match", "-8", "8", False),
        ("integer-match", "8.0", "8", False),
        ("integer-match", "8 files", "8", False),
        ("integer-match", "", "", False),
        ("integer-match", "0\n1", "0\n1\n", False),
        ("integer-match", "9" * 5000, "9" * 5000, False),
        ("integer-match", "8" + " " * 200 + "files", "8", False),
        ("integer-match", " " * 200 + "8", "8", True),
        ("string-match", "a.txt", "a.txt\n", True),
        ("string-match", "a\r\nb", "a\nb\n", True),
        ("string-match", "A.txt", "a.txt", False),
        ("size-match", "12K", "12K\n", True),
        ("size-match", "12288", "12K", True),
        ("size-match", "12 KB", "12K", True),
        ("size-match", "4.0K", "4K", True),
        ("size-match", "2M", "2048K", True),
        ("size-match", "1.5G", "1536M", True),
        ("size-match", "12M", "12K", False),
        ("size-match", "about 12K", "12K", False),
        ("size-match", "", "", False),
        ("size-match", "12K" + " " * 200 + "bytes", "12K", False),
        ("size-match", "9" * 5000, "9" * 5000, False),
        ("containing", "the answer is 7", "7\n", True),
        ("containing", "7", "the answer is 7", False),
        ("containing", "anything", "", False),
        ("in", "b", "a\nb\nc\n", True),
        ("in", "d", "a\nb\nc\n", False),
        ("in", "", "a\nb\nc\n", False),
    ],
)
def test_a_matcher_compares_answer_and_target(
    name: str, answer: str, target: str, right: bool
) -> None:
    assert MATCHERS[name](answer, target) is right


@pytest.mark.parametrize(
    ("match", "answer", "right"),
    [
        (Match(answer="log"), " log\n", True),
        (Match(answer="log"), "Log", False),
        (Match(answer="log", strip=False), " log", False),
        (Match(answer=" log", strip=False), " log", True),
        (Match(answer=""), "", True),
        (Match(regex=r"^\d{3}$"), " 123 ", True),
        (Match(regex=r"^\d{3}$", strip=False), " 123 ", False),
        (Match(regex=r"\d"), "one 1", True),
        (Match(regex=r"\d"), "one", False),
        (Match(), "", False),
    ],
)
def test_a_match_is_the_answer_itself(match: Match, answer: str, right: bool) -> None:
    assert matches(match, answer) is right
