"""The search over a catalogue's texts."""

import json
import math
import string
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.webshop.catalogue.catalogue import MemoryCatalogue
from agentrl.envs.tasks.webshop.catalogue.search import SearchIndex, terms
from agentrl.envs.tasks.webshop.goals import human_goals, synthetic_goals
from agentrl.envs.tasks.webshop.shop import FOUND, PAGE

WORDS = "lamp chair red blue steel oak pine soft hard small".split()  # noqa: SIM905
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join), max_size=30)
QUERIES = st.lists(st.sampled_from([*WORDS, "unseen"]), max_size=6).map(" ".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Women’s shoes of Tom's", ["women", "shoe", "tom"]),
        ("can't stop fan-blades", ["can't", "stop", "fan", "blade"]),
        ("3,000.5 mm, v8 a.b 1.b", ["3,000.5", "mm", "v8", "a.b", "1", "b"]),
        ("café naïve 日本", ["café", "naïv", "日本"]),
        ("", []),
        ("★ of the ???", []),
    ],
)
def test_a_text_becomes_stemmed_words_without_stop_words(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


class WatchedStemmer:
    """Knows which threads used it."""

    made: ClassVar[list["WatchedStemmer"]] = []

    def __init__(self, _algorithm: str) -> None:
        self.threads = set[int]()
        self.made.append(self)

    def stemWord(self, word: str) -> str:  # noqa: N802 - PyStemmer's name
        self.threads.add(threading.get_ident())
        return word


def test_no_two_threads_share_a_stemmer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Stemmer", SimpleNamespace(Stemmer=WatchedStemmer))
    for word in ("zyzzyvaone", "zyzzyvatwo"):
        thread = threading.Thread(target=terms, args=(word,))
        thread.start()
        thread.join()
    assert [len(each.threads) for each in WatchedStemmer.made] == [1, 1]


@given(st.text(max_size=60) | st.text(string.printable, max_size=60))
def test_no_text_has_an_empty_term(text: str) -> None:
    assert all(terms(text))


def test_a_rare_term_a_repeated_term_and_a_short_text_count_more() -> None:
    texts = ["oak lamp", "red lamp", "red lamp lamp", "red lamp and a chair that stands by itself"]
    index = SearchIndex.build(texts)
    assert index.best("lamp", 4) == [2, 0, 1, 3]
    assert index.best("oak lamp", 1) == [0]


def test_a_score_worked_out_by_hand() -> None:
    """Two texts of two terms, one has it: ln(1 + 1.5 / 1.5) · 1 / (1 + 0.9) = 0.36481."""
    index = SearchIndex.build(["oak lamp", "red chair"])
    oak = index._vocabulary.get("oak")
    scores = index._index.get_scores_from_ids([oak])
    assert scores.tolist() == pytest.approx([math.log(2) / 1.9, 0.0], rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(TEXTS, QUERIES, st.integers(1, 8))
def test_results_have_a_term_of_the_query_and_ties_go_to_the_first(
    texts: list[str], query: str, limit: int
) -> None:
    index = SearchIndex.build(texts)
    found = index.best(query, limit)
    wanted = set(terms(query))
    having = [number for number, text in enumerate(texts) if wanted & set(terms(text))]
    assert len(found) == min(limit, len(having))
    assert set(found) <= set(having)
    for first, second in pairwise(found):
        assert first < second or sorted(texts[first].split()) != sorted(texts[second].split())


@settings(max_examples=10, deadline=None)
@given(TEXTS, QUERIES)
def test_an_index_in_a_folder_finds_what_one_in_memory_finds(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], query: str
) -> None:
    folder = tmp_path_factory.mktemp("index")
    index = SearchIndex.build(texts)
    index.save(folder)
    assert SearchIndex.open(folder).best(query, 10) == index.best(query, 10)


@pytest.mark.parametrize("text", ["", "the of and", "unseen words", "★★★ ???"])
def test_a_search_for_nothing_known_finds_nothing(text: str) -> None:
    assert SearchIndex.build(["oak lamp"]).best(text, 5) == []


def test_a_long_query_is_cut() -> None:
    """Each term costs a pass over its texts."""
    index = SearchIndex.build(["oak lamp", "red chair"])
    assert index.best("red " * 200 + "oak", 5) == [1]


@pytest.mark.parametrize("package", ["bm25s", "Stemmer"])
def test_a_missing_package_is_one_error_with_the_command(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with (
        ThreadPoolExecutor(1) as fresh,
        pytest.raises(ItemError, match="webshop: search: ") as raised,
    ):
        fresh.submit(SearchIndex.build, [f"a word for {package}"]).result()
    assert raised.value.hint == "run `pip install 'agentrl-system[tasks]'`"


def test_an_index_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        SearchIndex.open(tmp_path)


def test_every_wanted_product_is_on_the_first_page_of_a_search_for_its_title(
    sample_catalogue: MemoryCatalogue,
) -> None:
    products = sample_catalogue.products
    wanted = {goal.asin for goal in [*human_goals(products), *synthetic_goals(products)]}
    for asin in wanted:
        title = sample_catalogue.product(asin).title.lower()
        assert asin in sample_catalogue.find(title, PAGE), title


def test_results_are_those_of_lucene(sample_catalogue: MemoryCatalogue) -> None:
    """Lucene 9's first fifty (Anserini, k1 0.9, b 0.4) for titles of the sample, in any order."""
    found = json.loads(Path(__file__).with_name("lucene_top50.json").read_text())
    shares = []
    for asin, theirs in found.items():
        title = sample_catalogue.product(asin).title.lower()
        ours = sample_catalogue.find(title, FOUND)
        shares.append(len(set(ours) & set(theirs.split())) / len(theirs.split()))
    assert sum(shares) / len(shares) >= 0.97
