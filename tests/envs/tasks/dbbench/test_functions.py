"""Regular expressions, numbers, texts and dates, beside independent readings of the same."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import grows_linearly, steps

from agentrl.envs.tasks.dbbench import dates
from agentrl.envs.tasks.dbbench.matching import like
from agentrl.envs.tasks.dbbench.regexp import compiled
from agentrl.envs.tasks.dbbench.scalars import trim
from agentrl.envs.tasks.dbbench.values import collate, number, text, whole

parts = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "(a|bc)", "\\d", "(?:ab)"])
repeated = st.tuples(parts, st.sampled_from(["", "*", "+", "?", "{2}", "{1,2}"])).map("".join)
patterns = st.tuples(
    st.sampled_from(["", "^"]),
    st.lists(repeated, max_size=4).map("".join),
    st.sampled_from(["", "$"]),
).map("".join)


def found(pattern: str, word: str) -> tuple[int, int] | None:
    return compiled(pattern).find(word, tick=lambda: None)


@given(patterns, st.text(alphabet="abc1", max_size=8))
def test_a_pattern_matches_where_pythons_does(pattern: str, word: str) -> None:
    theirs, ours = re.search(pattern.replace("$", "\\Z"), word), found(pattern, word)
    assert (theirs is None) == (ours is None)
    if theirs and ours:
        assert theirs.start() == ours[0]
        assert re.fullmatch(pattern, word[ours[0] : ours[1]]) or "$" in pattern or "^" in pattern


@pytest.mark.parametrize(
    ("pattern", "word", "span"),
    [
        ("KIM", "a kim", (2, 5)),
        ("[[:digit:]]+", "ab12", (2, 4)),
        ("\\bto\\b", "tow to", (4, 6)),
        ("[]a]+", "b]a", (1, 3)),
        ("a{2,}", "caaa", (1, 4)),
        ("x|", "ab", (0, 0)),
    ],
)
def test_patterns_by_hand(pattern: str, word: str, span: tuple[int, int]) -> None:
    assert found(pattern, word) == span


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "*a",
        "a{999}",
        "[b-a]",
        "\\1",
        "(?=a)",
        "[[:no:]]",
        "((a{255}){255})",
        f"[{'ab' * 2001}]",
    ],
)
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        compiled(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(a+)+$"])
def test_a_text_is_read_in_steps_proportional_to_its_length(pattern: str) -> None:
    assert grows_linearly(lambda size: found(pattern, "a" * size + "c"), 500)


def test_repetitions_of_nothing_are_given_up_while_compiling() -> None:
    assert steps(lambda: compiled("((((){255}){255}){255}){255}"), most=1_000_000)


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    try:
        compiled(pattern)
    except ValueError:
        return
    found(pattern, "some text")


@given(st.text(alphabet="aB%_\\", max_size=6), st.text(alphabet="abB%_\\", max_size=6))
def test_like_matches_as_the_regular_expression_it_stands_for(pattern: str, word: str) -> None:
    escaped, expression = False, ""
    for letter in pattern:
        if escaped or letter not in "%_\\":
            expression, escaped = expression + re.escape(letter), False
        elif letter == "\\":
            escaped = True
        else:
            expression += {"%": ".*", "_": "."}[letter]
    expression += "\\\\" if escaped else ""
    assert like(word, pattern, tick=lambda: None) == int(
        bool(re.fullmatch(expression, word, re.IGNORECASE))
    )


@pytest.mark.parametrize(
    ("word", "mark", "where", "left"),
    [
        (" a  ", " ", "BOTH", "a"),
        ("xxaxx", "x", "LEADING", "axx"),
        ("ababa", "ab", "TRAILING", "ababa"),
        ("xxx", "xx", "BOTH", "x"),
        ("xxxx", "xx", "BOTH", ""),
        ("a", "", "BOTH", "a"),
    ],
)
def test_marks_are_trimmed(word: str, mark: str, where: str, left: str) -> None:
    assert trim(word, mark, where) == left


class Copied(str):
    """A text that counts the letters copied out of it."""

    letters = 0

    def __getitem__(self, place: Any) -> "Copied":
        part = Copied(super().__getitem__(place))
        Copied.letters += len(part)
        return part


def test_a_long_text_is_trimmed_without_copying_it_again_and_again() -> None:
    Copied.letters = 0
    assert trim(Copied("a" * 1000 + "b"), "a") == "b"
    assert Copied.letters == 1


@pytest.mark.parametrize(
    ("value", "double", "signed"),
    [
        ("12abc", 12.0, 12),
        (" -3.7x", -3.7, -3),
        ("1,200", 1.0, 1),
        ("", 0.0, 0),
        (".5", 0.5, 0),
        ("1e3", 1000.0, 1),
        ("٣", 0.0, 0),
        (2.5, 2.5, 3),
        (-2.5, -2.5, -3),
        (None, None, None),
    ],
)
def test_numbers_are_read_from_the_head(
    value: str | float | None, double: float | None, signed: int | None
) -> None:
    assert (number(value), whole(value)) == (double, signed)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (13.0, "13"),
        (0.1 + 0.2, "0.30000000000000004"),
        (100000000000000.0, "100000000000000"),
        (1000000000000000.0, "1e15"),
        (-1e20, "-1e20"),
        (1.2345678901234568e20, "1.2345678901234568e20"),
        (1e-05, "0.00001"),
        (123456.5, "123456.5"),
        (7, "7"),
        ("x", "x"),
        (None, None),
    ],
)
def test_doubles_are_written_as_mariadb_writes_them(value: float, written: str) -> None:
    assert text(value) == written


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_that_is_written_is_read_again(value: float) -> None:
    assert number(text(value)) == pytest.approx(value, rel=1e-15)


@settings(max_examples=60)
@given(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))
def test_texts_have_one_order(one: str, two: str, three: str) -> None:
    assert collate(one, two) == -collate(two, one)
    if collate(one, two) <= 0 and collate(two, three) <= 0:
        assert collate(one, three) <= 0


def test_the_order_of_signs_digits_and_letters_is_mariadbs() -> None:
    """ORDER BY of these under utf8mb4_unicode_520_nopad_ci."""
    given_order = [
        "",
        " ",
        "_",
        "-",
        "–",
        ",",
        ";",
        "!",
        "?",
        ".",
        "'",
        '"',
        "(",
        "@",
        "*",
        "/",
        "&",
    ]
    given_order += [
        "#",
        "%",
        "†",
        "+",
        "<",
        "=",
        ">",
        "|",
        "~",
        "$",
        "€",
        "0",
        "9",
        "A",
        "á b",
        "B",
    ]
    assert all(collate(a, b) < 0 for a, b in itertools.pairwise(given_order))


@pytest.mark.parametrize(
    ("word", "pattern", "date"),
    [
        ("August 15, 2000", "%M %d, %Y", "2000-08-15"),
        ("15 Aug 99", "%d %b %y", "1999-08-15"),
        ("2014", "%Y", "2014-00-00"),
        ("", "%Y", "0000-00-00"),
        ("10:30 PM", "%h:%i %p", "22:30:00"),
        ("2000-02-30", "%Y-%m-%d", None),
        ("Augustus", "%d", None),
        ("3rd May 2001", "%D %M %Y", "2001-05-03"),
    ],
)
def test_dates_are_read_by_their_pattern(word: str, pattern: str, date: str | None) -> None:
    assert dates.parsed(word, pattern) == date


@given(st.dates())
def test_a_date_that_is_written_is_read_again(day: object) -> None:
    assert dates.parsed(dates.formatted(str(day), "%W, %M %e %Y") or "", "%W, %M %e %Y") == str(day)


@given(st.text(max_size=20), st.text(alphabet="%YmdbMeHisp- ,", max_size=10))
def test_any_text_and_pattern_is_a_date_or_null(word: str, pattern: str) -> None:
    assert isinstance(dates.parsed(word, pattern), str | None)
    assert isinstance(dates.formatted(word, pattern), str | None)
