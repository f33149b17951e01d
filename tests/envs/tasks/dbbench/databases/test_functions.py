"""Regular expressions, LIKE, and the order of texts, beside independent readings of the same."""

import itertools
import re

import pytest
from executed_lines import grows_linearly
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.tasks.dbbench.databases.functions import collate, like, text
from agentrl.envs.tasks.dbbench.databases.regexp import compile_pattern

parts = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "(a|bc)", "\\d", "(?:ab)"])
repeated = st.tuples(parts, st.sampled_from(["", "*", "+", "?", "{2}", "{1,2}"])).map("".join)
patterns = st.tuples(
    st.sampled_from(["", "^"]),
    st.lists(repeated, max_size=4).map("".join),
    st.sampled_from(["", "$"]),
).map("".join)


def matches(pattern: str, word: str) -> bool:
    return bool(compile_pattern(pattern)(word, set(range(len(word) + 1)), lambda: None))


@given(patterns, st.text(alphabet="abc1", max_size=8))
def test_a_pattern_matches_where_pythons_does(pattern: str, word: str) -> None:
    assert matches(pattern, word) == bool(re.search(pattern.replace("$", "\\Z"), word))


@pytest.mark.parametrize(
    ("pattern", "word", "found"),
    [
        ("KIM", "a kim", True),
        ("^[[:digit:]]+$", "12", True),
        ("^[^[:space:]]+$", "a b", False),
        ("\\bto\\b", "tow to", True),
        ("^[]a]+$", "b]a", False),
        ("^[]a[]+$", "[]a", True),
        ("^a{2,3}$", "aaaa", False),
        ("x|", "ab", True),
        ("^([0-9]{1,3},)*[0-9]{3}$", "1,204,500", True),
    ],
)
def test_patterns_by_hand(pattern: str, word: str, found: bool) -> None:
    assert matches(pattern, word) is found


@pytest.mark.parametrize(
    "pattern", ["(", ")", "*a", "[b-a]", "\\1", "(?=a)", "[[:no:]]", "[", "\\"]
)
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(re.error):
        compile_pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(a+)+$", "^(a+)+$"])
def test_a_text_is_read_in_steps_proportional_to_its_length(pattern: str) -> None:
    assert grows_linearly(lambda size: matches(pattern, "a" * size + "c"), 500)


def test_repetitions_of_nothing_end_with_the_statements_time() -> None:
    ticks = itertools.chain(range(1000), (1 / 0 for _ in "x"))
    with pytest.raises(ZeroDivisionError):
        compile_pattern("((((){255}){255}){255}){255}")("", {0}, lambda: next(ticks))


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    try:
        compile_pattern(pattern)
    except (re.error, OverflowError):
        return
    matches(pattern, "some text")


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
    assert like(pattern, word) == bool(re.fullmatch(expression, word, re.IGNORECASE))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (13.0, "13"),
        (0.1 + 0.2, "0.30000000000000004"),
        (-1e20, "-1e20"),
        (1.2345678901234568e20, "1.2345678901234568e20"),
        (123456.5, "123456.5"),
        (7, "7"),
        ("x", "x"),
        (None, ""),
    ],
)
def test_doubles_are_written_as_mariadb_writes_them(value: float, written: str) -> None:
    assert text(value) == written


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
