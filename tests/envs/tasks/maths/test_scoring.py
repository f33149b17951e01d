"""The rules of docs/tasks/maths.md, worked by hand, and what holds for every number."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.tasks.maths.scoring import LONGEST, answers_match

NUMBERS = st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=10**6)


@pytest.mark.parametrize(
    ("given_answer", "right"),
    [
        ("1,234,567", "1234567"),
        ("0.5", "1/2"),
        ("2/4", "1/2"),
        ("(-1)/2", "-.5"),
        ("3 1/2", "3.50"),
        ("-3 1/2", "-7/2"),
        ("1.2e3", "1200"),
        ("7.0", "7"),
        ("0.30000000000000004", "0.3"),
        ("0.3333333333333333", "1/3"),
        ("1.2246467991473532e-16", "0"),
        (r"$\frac{3}{4}$", "0.75"),
        (r"So it is \boxed{42}.", "42"),
        ("x = 5", "5"),
        ("$18", "18"),
        ("50%", "50"),
        ("−3", "-3"),
        (" 42. ", "42"),
        ("2 × 3 × 3", "2*3*3"),
        ("No Solution", "no solution"),
    ],
)
def test_an_answer_may_be_written_in_another_way(given_answer: str, right: str) -> None:
    assert answers_match(given_answer, right)


@pytest.mark.parametrize(
    ("given_answer", "right"),
    [
        ("", ""),
        (" ", "0"),
        ("43", "42"),
        ("0.3333", "1/3"),
        ("12345678901.0", "12345678902"),
        ("42 cups", "42"),
        ("6*7", "42"),
        ("3,5", "35"),
        ("12,34", "1234"),
        ("1/0", "0"),
        ("1e999", "1"),
        ("nan", "0"),
        ("inf", "1e300"),
        ("٣", "3"),
        ("3 * 2", "2 * 3"),
        ("0" * LONGEST + "42", "42"),
    ],
)
def test_any_other_answer_is_wrong(given_answer: str, right: str) -> None:
    assert not answers_match(given_answer, right)


@given(NUMBERS)
def test_every_fraction_equals_itself_its_multiples_and_its_double(value: Fraction) -> None:
    assert answers_match(str(value), str(value))
    assert answers_match(f"{value.numerator * 3}/{value.denominator * 3}", str(value))
    assert answers_match(repr(float(value)), str(value))


@given(st.integers())
def test_every_integer_equals_itself_with_commas_and_no_neighbour(value: int) -> None:
    if len(f"{value:,}") <= LONGEST:
        assert answers_match(f"{value:,}", str(value))
        assert not answers_match(str(value + 1), str(value))


@given(NUMBERS, NUMBERS)
def test_exact_numbers_are_equal_if_their_values_are(one: Fraction, other: Fraction) -> None:
    assert answers_match(str(one), str(other)) == (one == other)
    assert answers_match(str(one), str(other)) == answers_match(str(other), str(one))


@given(st.text(), st.text())
def test_any_text_is_compared(one: str, other: str) -> None:
    assert answers_match(one, other) in (True, False)
    assert not answers_match("", other)
