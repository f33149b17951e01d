"""BM25 over an index on disk that all sessions of all processes share, equal to Lucene's.

Robertson's BM25 as Lucene 8 and later computes it: document lengths through one lossy byte
(SmallFloat.intToByte4), single precision for each term's share, double for their sum. Ties go to
the smaller product id, as Anserini breaks them.

Terms are taken by what they can add at most, the highest first. Once the rest together cannot lift
a new product over what the k-th best reaches, only those already found are looked up in the longer
lists (MaxScore; Turtle and Flood, 1995): the same results, most postings of common words unread.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.envs.tasks.webshop.analysis import terms

K1, B = 0.9, 0.4
SLACK = 1e-6  # relative; single precision rounds the bounds and the sums differently
EXACT = 24  # lengths below it are kept as they are

Ids = NDArray[np.uint32]
Scores = NDArray[np.float64]


def length_byte(length: int) -> int:
    """SmallFloat.intToByte4: four significant bits above 24."""
    if length < EXACT:
        return length
    above = length - EXACT
    shift = above.bit_length() - 4
    code = above if shift < 0 else (above >> shift) & 0x07 | (shift + 1) << 3
    return EXACT + code


def byte_length(byte: int) -> int:
    """SmallFloat.byte4ToInt: the shortest length with this byte."""
    if byte < EXACT:
        return byte
    code = byte - EXACT
    bits, shift = code & 0x07, (code >> 3) - 1
    return EXACT + (bits if shift < 0 else (bits | 0x08) << shift)


@dataclass(frozen=True)
class Postings:
    """Arrays of N products, T terms and P postings, in memory or mapped.

    `starts`: [T + 1] into the postings; `products`: [P], ascending within a term; `counts`: [P]
    occurrences; `norms`: [N] length bytes; `peaks`: [T] largest count · norm factor of a term;
    `order`: [N] rank of each product's id; `mean_length`: tokens a product.
    """

    vocabulary: "dict[str, int] | Words"
    starts: NDArray[np.int64]
    products: Ids
    counts: NDArray[np.uint16]
    norms: NDArray[np.uint8]
    peaks: NDArray[np.float32]
    order: Ids
    mean_length: float

    @cached_property
    def factors(self) -> NDArray[np.float32]:
        """[256] of a length byte: 1 / (k1 · (1 − b + b · length / mean length))."""
        return norm_factors(self.mean_length)

    @cached_property
    def filled(self) -> int:
        """Products with any term."""
        return int(np.count_nonzero(self.norms))

    def idf(self, term: int) -> np.float32:
        """ln(1 + (N − n + ½) / (n + ½)): n of the N products hold the term."""
        held = int(self.starts[term + 1] - self.starts[term])
        return np.float32(np.log(1 + (self.filled - held + 0.5) / (held + 0.5)))


class Words:
    """A vocabulary on disk: sorted words, one a line, found by bisection."""

    def __init__(self, words: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        self._words, self._offsets = words, offsets

    def get(self, word: str) -> int | None:
        wanted = word.encode()
        low, high = 0, len(self._offsets) - 1
        while low < high:
            middle = (low + high) // 2
            found = self._words[self._offsets[middle] : self._offsets[middle + 1]].tobytes()
            if found == wanted:
                return middle
            low, high = (middle + 1, high) if found < wanted else (low, middle)
        return None


def norm_factors(mean_length: float) -> NDArray[np.float32]:
    one, k1, b = np.float32(1), np.float32(K1), np.float32(B)
    lengths = np.array([byte_length(byte) for byte in range(256)], np.float32)
    return one / (k1 * ((one - b) + b * lengths / np.float32(mean_length)))


class Search:
    """The k best products for a text. Read-only: any number of threads may search at once."""

    def __init__(self, postings: Postings) -> None:
        self._postings = postings
        self._kept = threading.local()

    def best(self, text: str, limit: int) -> list[tuple[int, float]]:
        """Product numbers and scores, best first; none where no term occurs."""
        known = [
            (term, count)
            for word, count in Counter(terms(text)).items()
            if (term := self._postings.vocabulary.get(word)) is not None
        ]
        lists = sorted((_List(self._postings, *each) for each in known), key=_List.ceiling)
        if not lists:
            return []
        found, scores = self._find(lists[::-1], limit)
        rounded = scores.astype(np.float32)
        best = np.lexsort((self._postings.order[found], -rounded))[:limit]
        return [(int(found[place]), float(rounded[place])) for place in best]

    def _find(self, lists: Sequence["_List"], limit: int) -> tuple[Ids, Scores]:
        """With a column of sums that the thread keeps: a fresh one costs more than a search."""
        sums = getattr(self._kept, "sums", None)
        self._kept.sums = None
        if sums is None:
            sums = np.zeros(len(self._postings.norms), np.float64)
        found = _collect(lists, sums, limit)
        self._kept.sums = sums
        return found


class _List:
    """One term's products and what it adds to each."""

    def __init__(self, postings: Postings, term: int, count: int) -> None:
        self._postings = postings
        span = slice(int(postings.starts[term]), int(postings.starts[term + 1]))
        self.products, self._counts = postings.products[span], postings.counts[span]
        self._weight = np.float32(count) * postings.idf(term)
        self._peak = postings.peaks[term]

    def ceiling(self) -> float:
        """What the term can add at most."""
        return float(self._weight - self._weight / (1 + self._peak)) * (1 + SLACK)

    def scores(self) -> NDArray[np.float32]:
        """Of all its products."""
        return self._shares(self.products, self._counts)

    def look_up(self, wanted: Ids) -> Scores:
        """Of some products; 0 where the term is not in them."""
        products = self.products
        places = np.minimum(np.searchsorted(products, wanted), len(products) - 1)
        held = products[places] == wanted
        counts = self._counts[places]
        return np.where(held, self._shares(wanted, counts), np.float32(0)).astype(np.float64)

    def _shares(self, products: Ids, counts: NDArray[np.uint16]) -> NDArray[np.float32]:
        saturation = counts * self._postings.factors[self._postings.norms[products]]
        shares: NDArray[np.float32] = self._weight - self._weight / (np.float32(1) + saturation)
        return shares


def _collect(lists: Sequence[_List], sums: Scores, limit: int) -> tuple[Ids, Scores]:
    """All products that may be among the best, with their whole scores.

    `sums`: [N] zeros, and zeros again afterwards.
    """
    rest = [sum(each.ceiling() for each in lists[place:]) for place in range(len(lists) + 1)]
    bar, read, best = 0.0, list[Ids](), np.empty(0, np.uint32)
    for place, each in enumerate(lists):
        if rest[place] < bar:
            break
        partial = sums[each.products] + each.scores()
        sums[each.products] = partial
        read.append(each.products)
        best = _leading(best, each.products, partial, sums, limit)
        bar = max(bar, _bar(best, sums, lists[place + 1 :], limit))
    least = max(0.0, bar - rest[len(read)])
    found, scores = _taken(read, sums, least)
    # Neighbours are looked up one after the other; some ascending runs are merged, not sorted.
    by_number = np.argsort(found, kind="stable")
    found, scores = found[by_number], scores[by_number]
    for place in range(len(read), len(lists)):
        scores += lists[place].look_up(found)
        keep = scores >= bar - rest[place + 1]
        found, scores = found[keep], scores[keep]
    return found, scores


def _taken(read: Sequence[Ids], sums: Scores, least: float) -> tuple[Ids, Scores]:
    """Each product over `least` once, with its sum; the sums become zeros."""
    found, scores = [], []
    for held in read:
        partial = sums[held]
        sums[held] = 0.0
        over = partial > least
        found.append(held[over])
        scores.append(partial[over])
    return np.concatenate(found), np.concatenate(scores)


def _leading(best: Ids, products: Ids, partial: Scores, sums: Scores, limit: int) -> Ids:
    """The products with the largest sums: of the `best` before and of a list read since."""
    least = sums[best].min() if len(best) == limit else 0.0
    fresh = np.flatnonzero(partial >= least)
    fresh = fresh[_largest(partial[fresh], limit)]
    some = np.union1d(best, products[fresh])
    return some[_largest(sums[some], limit)]


def _largest(scores: Scores, limit: int) -> NDArray[np.intp]:
    """The places of the largest, in any order; of all where there are no more."""
    rest = len(scores) - limit
    return np.argpartition(scores, rest)[rest:] if rest > 0 else np.arange(len(scores))


def _bar(best: Ids, sums: Scores, unread: Sequence[_List], limit: int) -> float:
    """A score that the k-th best reaches: the least of k products that look good so far."""
    if len(best) < limit:
        return 0.0
    scores = sums[best]
    for each in unread:
        scores += each.look_up(best)
    return float(scores.min()) * (1 - SLACK)
