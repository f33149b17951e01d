"""BM25 search over the texts of a catalogue with bm25s, in memory or in a folder.

Terms, stop words, stems and parameters are those of the benchmark's Lucene index. Its tokenizer is
approximated by one pattern, and lengths are not rounded as Lucene does.
"""

import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.core.errors import ItemError

K1, B = 0.9, 0.4
MAX_TERMS = 200  # of a query that are searched for
_STOP_WORDS_TEXT = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS_TEXT.split())

_WORD = re.compile(
    r"\w+(?:(?:(?<=[^\W\d_])[:.'’](?=[^\W\d_])|(?<=\d)[,;.'](?=\d))\w+)*"  # can't, a.b, 3,000.5
)


_OF_THREAD = threading.local()
_TERMS, _TERM_ENDS, _TERM_IDS = "terms", "term_ends", "term_ids"


class MappedVocabulary:
    """The numbers of terms, in files: as a dictionary, millions of terms take a gigabyte."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError, ValueError."""
        self._terms = map_array(folder / _TERMS, np.uint8)
        self._ends = map_array(folder / _TERM_ENDS, np.int64)
        self._ids = map_array(folder / _TERM_IDS, np.int32)

    @staticmethod
    def write(vocabulary: Mapping[str, int], folder: Path) -> None:
        """Write the terms in order of their bytes."""
        encoded = sorted((_encode(term), number) for term, number in vocabulary.items())
        (folder / _TERMS).write_bytes(b"".join(term for term, _ in encoded) or b"\n")  # is mapped
        np.cumsum([0, *(len(term) for term, _ in encoded)]).tofile(folder / _TERM_ENDS)
        np.array([number for _, number in encoded], np.int32).tofile(folder / _TERM_IDS)

    def get(self, term: str) -> int | None:
        encoded = _encode(term)
        place = bisect_left(range(len(self._ids)), encoded, key=self._term)
        is_known = place < len(self._ids) and self._term(place) == encoded
        return int(self._ids[place]) if is_known else None

    def _term(self, place: int) -> bytes:
        return self._terms[self._ends[place] : self._ends[place + 1]].tobytes()


class SearchIndex:
    """Finds the best texts for a query. Read-only: any number of threads may search at once."""

    def __init__(self, index: Any, vocabulary: dict[str, int] | MappedVocabulary) -> None:
        """`index`: a bm25s.BM25, whose own vocabulary is not used."""
        self._index, self._vocabulary = index, vocabulary

    @classmethod
    def build(cls, texts: Iterable[str]) -> "SearchIndex":
        """Index texts in memory. Raises ItemError."""
        vocabulary = {"": 0}  # the term of an empty text, which no query has
        documents = [
            [vocabulary.setdefault(term, len(vocabulary)) for term in terms(text)] or [0]
            for text in texts
        ]
        index = _bm25s().BM25(method="lucene", k1=K1, b=B)
        index.index((documents or [[0]], vocabulary), show_progress=False)
        index.vocab_dict = {}
        return cls(index, vocabulary)

    @classmethod
    def open(cls, folder: Path) -> "SearchIndex":
        """Map the index that `save` wrote to a folder. Raises ItemError, OSError, ValueError."""
        index = _bm25s().BM25.load(folder, mmap=True, load_vocab=False, show_progress=False)
        return cls(index, MappedVocabulary(folder))

    def save(self, folder: Path) -> None:
        """Write an index that was built in memory."""
        if isinstance(self._vocabulary, MappedVocabulary):
            raise ValueError("an index that was opened is saved already")
        self._index.save(folder, show_progress=False)
        MappedVocabulary.write(self._vocabulary, folder)

    def best(self, query: str, limit: int) -> list[int]:
        """Return the numbers of texts with any term of the query, best first; ties by number."""
        numbers = (self._vocabulary.get(term) for term in terms(query)[:MAX_TERMS])
        known = [number for number in numbers if number is not None]
        if not known:
            return []
        scores = self._index.get_scores_from_ids(known)
        places = np.flatnonzero(scores)  # to partition the many zeros, too, would take 0.1 s
        values = scores[places]
        if len(places) > limit:
            keep = values >= np.partition(values, -limit)[-limit]
            places, values = places[keep], values[keep]
        best: list[int] = places[np.argsort(-values, kind="stable")[:limit]].tolist()
        return best


def map_array(path: Path, kind: Any) -> NDArray[Any]:
    """Map a file read-only as a plain array, whose parts cost less to take than a memmap's."""
    return np.memmap(path, dtype=kind, mode="r").view(np.ndarray)


def _encode(term: str) -> bytes:
    return term.encode(errors="surrogatepass")


def terms(text: str) -> list[str]:
    """Return the index terms of a text, in order; one that occurs twice is there twice."""
    return [term for word in _WORD.findall(text.lower()) if (term := _term(word))]


@lru_cache(maxsize=1 << 20)  # a catalogue repeats its words
def _term(word: str) -> str:
    """Return the stem of a word without a possessive ending; empty for a stop word."""
    word = word.removesuffix("'s").removesuffix("’s")
    stem: str = "" if word in STOP_WORDS else _stemmer().stemWord(word)
    return stem


def _stemmer() -> Any:
    """Return the thread's own stemmer: PyStemmer's objects must not be shared. Raises ItemError."""
    stemmer = getattr(_OF_THREAD, "stemmer", None)
    if stemmer is None:
        try:
            from Stemmer import Stemmer
        except ImportError as error:
            raise _missing(error) from error
        stemmer = _OF_THREAD.stemmer = Stemmer("porter")
    return stemmer


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise _missing(error) from error
    return bm25s


def _missing(error: ImportError) -> ItemError:
    return ItemError(f"webshop: search: {error}", hint="run `pip install 'agentrl-system[tasks]'`")
