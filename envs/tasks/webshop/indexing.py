"""The search index of a catalogue, built in one pass over its texts, in memory or in a folder.

Texts are taken in blocks: each block's postings, sorted by term, are spilled to disk; in the end
every block's are copied to their terms' places. Memory holds one block and the vocabulary.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.envs.tasks.webshop.analysis import term_of, words
from agentrl.envs.tasks.webshop.search import Postings, Words, length_byte, norm_factors

BLOCK = 20_000  # products
MAX_COUNT = 65_535  # of a term in a product
_ARRAYS: dict[str, Any] = {
    "starts": np.int64,
    "products": np.uint32,
    "counts": np.uint16,
    "norms": np.uint8,
    "peaks": np.float32,
    "order": np.uint32,
}
_WORDS, _WORD_ENDS, _META = "words", "word_ends", "search.json"
FILES = (*_ARRAYS, _WORDS, _WORD_ENDS, _META)

Progress = Callable[[int], None]


def index_in_memory(documents: Iterable[tuple[str, str]], *, block: int = BLOCK) -> Postings:
    """The postings of (id, text) pairs, all in memory."""
    indexer = Indexer(None, block=block)
    for product_id, text in documents:
        indexer.add(product_id, text)
    return indexer.postings()


def open_postings(folder: Path) -> Postings:
    """The index that `Indexer.write` left in `folder`, mapped read-only. Raises OSError."""
    meta = json.loads((folder / _META).read_text())
    arrays = {name: map_array(folder / name, kind) for name, kind in _ARRAYS.items()}
    vocabulary = Words(
        map_array(folder / _WORDS, np.uint8),
        map_array(folder / _WORD_ENDS, np.int64),
    )
    return Postings(vocabulary, mean_length=meta["mean_length"], **arrays)


def map_array(path: Path, kind: Any) -> NDArray[Any]:
    """A file as an array, read-only; a plain one, whose parts cost less to take."""
    return np.memmap(path, dtype=kind, mode="r").view(np.ndarray)


@dataclass(frozen=True)
class _Block:
    """Postings of some products, by term. `terms`: [D] distinct, `sizes`: [D] postings of each."""

    terms: NDArray[np.int64]
    sizes: NDArray[np.int64]
    products: NDArray[np.uint32]
    counts: NDArray[np.uint16]


class Indexer:
    """Adds texts, then makes postings. `folder`: where blocks and the index go; None for memory.

    `block`: products of one block.
    """

    def __init__(self, folder: Path | None, *, block: int = BLOCK) -> None:
        self._block = block
        self._folder = folder
        self._terms: dict[str, int] = {}
        self._of_word: dict[str, int] = {}
        self._ids: list[bytes] = []
        self._lengths: list[int] = []
        self._entries: list[int] = []
        self._sizes: list[int] = []
        self._counts: list[int] = []
        self._blocks: list[_Block] = []
        self._spill = None if folder is None else tempfile.TemporaryDirectory(dir=folder)

    def close(self) -> None:
        """Remove the blocks; safe to call twice."""
        self._blocks.clear()
        if self._spill is not None:
            self._spill.cleanup()

    def add(self, product_id: str, text: str) -> None:
        of_word = self._of_word
        found = []
        for word in words(text):
            term = of_word.get(word)
            if term is None:
                term = self._number(word)
            if term >= 0:
                found.append(term)
        held = Counter(found)
        self._ids.append(product_id.encode())
        self._lengths.append(len(found))
        self._entries.extend(held)
        self._counts.extend(held.values())
        self._sizes.append(len(held))
        if len(self._sizes) == self._block:
            self._close_block()

    def _number(self, word: str) -> int:
        """The number of a word's term; −1 for a stop word."""
        name = term_of(word)
        number = self._terms.setdefault(name, len(self._terms)) if name else -1
        self._of_word[word] = number
        return number

    def _close_block(self) -> None:
        if not self._sizes:
            return
        first = len(self._ids) - len(self._sizes)
        products = np.repeat(np.arange(first, len(self._ids), dtype=np.uint32), self._sizes)
        entries = np.array(self._entries, np.int64)
        by_term = np.argsort(entries, kind="stable")
        held, sizes = np.unique(entries, return_counts=True)
        counts = np.minimum(np.array(self._counts, np.int64), MAX_COUNT).astype(np.uint16)
        block = _Block(held, sizes, products[by_term], counts[by_term])
        self._blocks.append(self._spilled(block))
        for each in (self._entries, self._counts, self._sizes):
            each.clear()

    def _spilled(self, block: _Block) -> _Block:
        if self._spill is None:
            return block
        place = Path(self._spill.name)
        number = len(self._blocks)

        def moved(name: str, array: NDArray[Any]) -> NDArray[Any]:
            path = place / f"{name}-{number}"
            array.tofile(path)
            return np.memmap(path, dtype=array.dtype, mode="r", shape=array.shape)

        return _Block(**{name: moved(name, array) for name, array in vars(block).items()})

    def postings(self) -> Postings:
        """The whole index. Call once, after the last text; of a folder, it is written there."""
        self._close_block()
        ranked = sorted(self._terms, key=str.encode)
        rank = np.empty(len(ranked), np.int64)
        for place, name in enumerate(ranked):
            rank[self._terms[name]] = place
        norms = np.array([length_byte(length) for length in self._lengths], np.uint8)
        filled = max(1, int(np.count_nonzero(norms)))
        mean_length = float(np.float32(sum(self._lengths) / filled)) or 1.0
        starts, products, counts = self._place(rank)
        factors = norm_factors(mean_length)
        peaks = np.array(list(_peaks(starts, products, counts, factors[norms])), np.float32)
        order = np.empty(len(self._ids), np.uint32)
        order[sorted(range(len(self._ids)), key=self._ids.__getitem__)] = np.arange(len(self._ids))
        vocabulary = {name: place for place, name in enumerate(ranked)}
        self.close()
        return Postings(vocabulary, starts, products, counts, norms, peaks, order, mean_length)

    def _place(
        self, rank: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint16]]:
        """Starts, products and counts, terms by rank, products ascending within each."""
        totals = np.zeros(len(rank), np.int64)
        for block in self._blocks:
            totals[rank[block.terms]] += block.sizes
        starts = np.concatenate([[0], np.cumsum(totals)]).astype(np.int64)
        products = self._array("products", np.uint32, int(starts[-1]))
        counts = self._array("counts", np.uint16, int(starts[-1]))
        free = starts[:-1].copy()
        for block in self._blocks:
            ranks = rank[block.terms]
            within = np.arange(len(block.products)) - np.repeat(
                np.cumsum(block.sizes) - block.sizes, block.sizes
            )
            places = np.repeat(free[ranks], block.sizes) + within
            products[places], counts[places] = block.products, block.counts
            free[ranks] += block.sizes
        return starts, products, counts

    def _array(self, name: str, kind: Any, size: int) -> NDArray[Any]:
        if self._folder is None or not size:
            return np.zeros(size, kind)
        return np.memmap(self._folder / name, dtype=kind, mode="w+", shape=(size,))

    def write(self) -> None:
        """Make the postings and leave all of them in the folder."""
        if self._folder is None:
            raise ValueError("an index in memory is not written")
        postings = self.postings()
        names = [name.encode() for name in postings.vocabulary]  # type: ignore[union-attr]
        lengths = np.array([0, *map(len, names)], np.int64)
        np.cumsum(lengths).tofile(self._folder / _WORD_ENDS)
        (self._folder / _WORDS).write_bytes(b"".join(names))
        for name in ("starts", "norms", "peaks", "order"):
            getattr(postings, name).tofile(self._folder / name)
        for array in (postings.products, postings.counts):
            if isinstance(array, np.memmap):
                array.flush()
        (self._folder / _META).write_text(json.dumps({"mean_length": postings.mean_length}))


def _peaks(
    starts: NDArray[np.int64],
    products: NDArray[np.uint32],
    counts: NDArray[np.uint16],
    factors: NDArray[np.float32],
) -> Iterator[float]:
    """Of each term, the largest count · norm factor."""
    step = 1 << 22
    term, terms = 0, len(starts) - 1
    while term < terms:
        end = max(term + 1, int(np.searchsorted(starts, starts[term] + step, side="right")) - 1)
        span = slice(int(starts[term]), int(starts[end]))
        values = counts[span] * factors[products[span]]
        yield from np.maximum.reduceat(values, starts[term:end] - starts[term]).tolist()
        term = end
