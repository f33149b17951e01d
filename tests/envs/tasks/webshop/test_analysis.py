"""Text to index terms."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.tasks.webshop import analysis
from agentrl.envs.tasks.webshop.analysis import terms, words
from agentrl.envs.tasks.webshop.porter import stem


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("caresses", "caress"),
        ("ponies", "poni"),
        ("cats", "cat"),
        ("agreed", "agre"),  # codespell:ignore
        ("feed", "feed"),
        ("plastered", "plaster"),
        ("motoring", "motor"),
        ("sing", "sing"),
        ("hopping", "hop"),
        ("falling", "fall"),
        ("filing", "file"),
        ("happy", "happi"),
        ("sky", "sky"),
        ("relational", "relat"),
        ("vietnamization", "vietnam"),
        ("triplicate", "triplic"),
        ("electrical", "electr"),
        ("adoption", "adopt"),
        ("replacement", "replac"),
        ("controlling", "control"),
        ("rate", "rate"),
        ("cease", "ceas"),
        ("possibly", "possibl"),
        ("technology", "technolog"),
        ("as", "as"),
    ],
)
def test_words_have_the_stems_of_porters_paper(word: str, expected: str) -> None:
    assert stem(word) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("can't stop fan-blades", ["can't", "stop", "fan", "blades"]),
        ("3,000.5 mm, v8 a.b 1.b", ["3,000.5", "mm", "v8", "a.b", "1", "b"]),
        ("size:large 12:30 a_b __", ["size:large", "12", "30", "a_b"]),
        ("café naïve", ["café", "naïve"]),
        ("日本 テスト ★ ①", ["日", "本", "テスト", "★"]),
        ("e\u0301te\u0301", ["e\u0301te\u0301"]),
    ],
)
def test_words_end_at_unicodes_boundaries(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_stop_words_go_and_possessives_lose_their_ending() -> None:
    assert terms("The Women’s shoes of Tom's") == ["women", "shoe", "tom"]


def test_a_word_over_255_characters_is_cut_in_pieces() -> None:
    assert [len(word) for word in words("a" * 600)] == [255, 255, 90]


@given(st.text(string.printable, max_size=80))
def test_the_short_pattern_finds_what_the_whole_one_finds(text: str) -> None:
    assert words(text) == analysis._unicode().findall(text)


@given(st.text(max_size=60))
def test_any_text_has_terms_in_lower_case(text: str) -> None:
    for term in terms(text):
        assert term
        assert term == term.lower() or not term.isascii()
