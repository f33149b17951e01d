"""BM25 against an exhaustive one of another make: double precision, plain loops."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.tasks.webshop.analysis import terms
from agentrl.envs.tasks.webshop.indexing import Indexer, index_in_memory, open_postings
from agentrl.envs.tasks.webshop.search import Search, byte_length, length_byte

WORDS = "lamp chair red blue steel oak pine soft hard small".split()  # noqa: SIM905
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join), max_size=30)
QUERIES = st.lists(st.sampled_from([*WORDS, "unseen"]), max_size=6).map(" ".join)


def kept(length: int) -> int:
    """What is left of a length in Lucene's byte: above 24, four significant bits."""
    step = 2 ** max(0, (length - 24).bit_length() - 4) if length > 24 else 1
    return length if length < 24 else 24 + (length - 24) // step * step


def exhaustive(texts: Sequence[str], query: str) -> dict[int, float]:
    held = [Counter(terms(text)) for text in texts]
    filled = [counts for counts in held if counts]
    mean = sum(counts.total() for counts in filled) / max(1, len(filled))
    scores: dict[int, float] = {}
    for word, times in Counter(terms(query)).items():
        having = sum(word in counts for counts in held)
        idf = math.log(1 + (len(filled) - having + 0.5) / (having + 0.5))
        for number, counts in enumerate(held):
            if word in counts:
                length = 1 - 0.4 + 0.4 * kept(counts.total()) / mean
                share = times * idf * counts[word] / (counts[word] + 0.9 * length)
                scores[number] = scores.get(number, 0.0) + share
    return scores


def identifiers(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Ids in the reverse order of numbers, so that ties show."""
    return [(f"P{len(texts) - number:03d}", text) for number, text in enumerate(texts)]


@settings(max_examples=50)
@given(TEXTS, QUERIES, st.integers(1, 8))
def test_the_best_are_those_of_an_exhaustive_search(
    texts: list[str], query: str, limit: int
) -> None:
    expected = exhaustive(texts, query)
    found = Search(index_in_memory(identifiers(texts))).best(query, limit)
    assert len({number for number, _ in found}) == min(limit, len(expected))
    for number, score in found:
        assert score == pytest.approx(expected[number], rel=1e-5)
    worst = min((score for _, score in found), default=0.0)
    for number, score in expected.items():
        assert score <= worst * (1 + 1e-5) or number in dict(found)


@settings(max_examples=30)
@given(TEXTS, QUERIES)
def test_ties_go_to_the_smaller_id(texts: list[str], query: str) -> None:
    named = identifiers(texts)
    found = Search(index_in_memory(named)).best(query, 50)
    keys = [(-score, named[number][0]) for number, score in found]
    assert keys == sorted(keys)


@settings(max_examples=15)
@given(TEXTS, QUERIES)
def test_an_index_in_a_folder_finds_what_one_in_memory_finds(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], query: str
) -> None:
    folder = tmp_path_factory.mktemp("index")
    indexer = Indexer(folder)
    for each in identifiers([*texts, "lamp"]):
        indexer.add(*each)
    indexer.write()
    in_folder = Search(open_postings(folder))
    assert in_folder.best(query, 10) == Search(index_in_memory(identifiers([*texts, "lamp"]))).best(
        query, 10
    )


def test_blocks_make_the_same_index() -> None:
    texts = identifiers([" ".join(WORDS[number % 7 :]) for number in range(50)])
    whole = index_in_memory(texts)
    parts = index_in_memory(texts, block=8)
    for name in ("starts", "products", "counts", "norms", "peaks", "order"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name))


def test_lengths_keep_four_significant_bits_above_24() -> None:
    assert [byte_length(length_byte(length)) for length in (0, 1, 23, 24, 39, 40, 41, 42)] == [
        *(0, 1, 23, 24, 39, 40, 40, 42)
    ]
    assert byte_length(length_byte(107)) == 104  # 83 = 0b1010011 keeps 0b1010000
    for length in range(3000):
        assert byte_length(length_byte(length)) == kept(length)


def test_a_score_worked_out_by_hand() -> None:
    """Two texts of 2 terms, one holds it: ln(1 + 1.5 / 1.5) · 1 / (1 + 0.9) = 0.36481."""
    [(number, score)] = Search(index_in_memory([("a", "oak lamp"), ("b", "red chair")])).best(
        "oak", 5
    )
    assert number == 0
    assert score == pytest.approx(math.log(2) / 1.9, rel=1e-6)


@pytest.mark.parametrize("text", ["", "the of and", "unseen words", "★★★ ???"])
def test_a_search_for_nothing_known_finds_nothing(text: str) -> None:
    assert Search(index_in_memory([("a", "oak lamp")])).best(text, 5) == []
