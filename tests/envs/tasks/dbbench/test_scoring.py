"""Scoring, with numbers worked out by hand and hashes from `md5sum`."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.tasks.dbbench.scoring import answers_match, combined_hash, normalise, table_hash


@pytest.mark.parametrize("value", ["", " ", "None", "null", "NaN", "inf", "-Infinity", "undefined"])
def test_what_stands_for_nothing_is_zero(value: str) -> None:
    assert normalise(value) == "0"


@pytest.mark.parametrize(
    ("value", "plain"),
    [("12%", "12"), ("1,234,567", "1234567"), (" 'kim' ", "kim"), ("a b", "a b")],
)
def test_percent_signs_commas_and_quotes_are_stripped(value: str, plain: str) -> None:
    assert normalise(value) == plain


@pytest.mark.parametrize(
    ("answers", "gold", "match"),
    [
        (["3"], ["3.0"], True),
        (["3.009"], ["3"], True),
        (["3.02"], ["3"], False),
        (["1,200"], ["1200"], True),
        (["50%"], ["50"], True),
        (["kim"], ["kim"], True),
        (["Kim"], ["kim"], False),
        (["0"], ["None"], True),
        (["3"], ["three"], False),
        (["inf"], ["1e999"], False),
        (["1e999"], ["1e999"], True),
        (["a", "b"], ["b", "a"], True),
        (["a", "a", "b"], ["a", "b", "b"], False),
        (["a"], ["a", "a"], False),
        (["2", "1.001"], ["1", "2"], True),
        (["1", "1.02"], ["1", "1"], False),
        (["1.0", "a"], ["1", "a"], False),
    ],
)
def test_answers_match_as_the_benchmark_says(
    answers: list[str], gold: list[str], match: bool
) -> None:
    assert answers_match(answers, gold) is match


@pytest.mark.parametrize("gold", [[], [""], ["0"], ["None"], ["kim"]])
@pytest.mark.parametrize("answers", [[], [""], [" ", ""]])
def test_an_empty_answer_never_scores(answers: list[str], gold: list[str]) -> None:
    assert not answers_match(answers, gold)


@pytest.mark.parametrize("answer", ["1+1", "[2]", "__import__('os')", "(2,)"])
def test_an_answer_is_never_evaluated(answer: str) -> None:
    assert not answers_match([answer], ["2"])


def test_a_table_hash_is_that_of_its_sorted_row_hashes() -> None:
    # md5sum: "a,1" → 9c33a…, "b,2" → fd1b6…, "9c33a,fd1b6" → 94daf…
    rows = [("b", "2"), ("a", "1")]
    assert table_hash(rows) == "94daf81f5ba0a57d9f93c36e502f5e0d"
    assert table_hash([("b", None, "2"), (None, "a", "1")]) == table_hash(rows)


def test_an_empty_table_has_the_hash_the_real_server_gives() -> None:
    assert table_hash([]) == "None"


@given(
    st.lists(
        st.lists(st.text(max_size=3) | st.none(), min_size=1, max_size=3), min_size=1, max_size=9
    )
)
def test_a_hash_ignores_the_order_of_rows_and_what_is_null(rows: list[list[str | None]]) -> None:
    assert table_hash(rows) == table_hash(rows[::-1])
    assert table_hash(rows) == table_hash([[*row, None] for row in rows])


def test_a_hash_sees_the_first_1024_bytes_of_the_row_hashes() -> None:
    """170 hashes of 5 digits and a comma are 1,020 bytes: of the 171st 4 digits count, no more."""
    rows = sorted(([str(number)] for number in range(300)), key=lambda row: row_digest(row[0]))
    assert table_hash(rows[:171]) == table_hash(rows)
    assert table_hash(rows[:170]) != table_hash(rows)


def row_digest(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:5]


def test_several_tables_hash_in_any_order() -> None:
    assert combined_hash(["b", "a"]) == "a_b"
    assert combined_hash(["a"]) == "a"


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1))
def test_an_answer_always_matches_itself_in_any_order(answers: list[str]) -> None:
    assert answers_match(answers, answers[::-1])


@given(st.lists(st.text()), st.lists(st.text()))
def test_matching_is_symmetric_but_for_empty_answers(left: list[str], right: list[str]) -> None:
    if any(map(str.strip, left)) and any(map(str.strip, right)):
        assert answers_match(left, right) == answers_match(right, left)
