"""What the shop sells: products by id and by search, in memory or in a folder all share."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.webshop import goals
from agentrl.envs.tasks.webshop.goals import Goal
from agentrl.envs.tasks.webshop.indexing import (
    FILES,
    Indexer,
    index_in_memory,
    map_array,
    open_postings,
)
from agentrl.envs.tasks.webshop.product import Product
from agentrl.envs.tasks.webshop.search import Search

FORMAT = 1
ID_BYTES = 10
REPORT = 10_000  # products between two reports of progress
_META, _GOALS, _IDS, _BY_ID = "shop.json", "goals.json", "ids", "by_id"
_RECORDS, _RECORD_ENDS = "records", "record_ends"

Progress = Callable[[int], None]


class Catalogue(Protocol):
    """Read-only; any number of threads may ask at once. `digest`: of all products."""

    digest: str

    def product(self, asin: str) -> Product:
        """Raises ItemError where there is none."""

    def find(self, text: str, limit: int) -> list[str]:
        """The ids of the products nearest to a text, best first."""


class MemoryCatalogue:
    """A few thousand products at most."""

    def __init__(self, products: Iterable[Product]) -> None:
        self.products = tuple(products)
        self._by_id = {product.asin: product for product in self.products}
        self._search = Search(index_in_memory((each.asin, each.text) for each in self.products))
        self.digest = hashlib.sha256(msgspec.json.encode(self.products)).hexdigest()[:16]

    def product(self, asin: str) -> Product:
        if asin not in self._by_id:
            raise ItemError(f"webshop: no product {asin}")
        return self._by_id[asin]

    def find(self, text: str, limit: int) -> list[str]:
        return [self.products[number].asin for number, _ in self._search.best(text, limit)]


class FolderCatalogue:
    """What `build` left in a folder. Records are read when asked for, the index is mapped."""

    def __init__(self, folder: Path) -> None:
        try:
            meta = json.loads((folder / _META).read_text())
            if meta.get("format") != FORMAT:
                raise ItemError(
                    f"webshop: {folder} is of format {meta.get('format')}, not {FORMAT}"
                )
            self._postings = open_postings(folder)
            self._offsets = map_array(folder / _RECORD_ENDS, np.int64)
            self._ids = map_array(folder / _IDS, f"S{ID_BYTES}")
            self._by_id = map_array(folder / _BY_ID, np.uint32)
            self._file = os.open(folder / _RECORDS, os.O_RDONLY)
        except (OSError, ValueError) as error:
            raise ItemError(
                f"webshop: no index in {folder}: {error}",
                hint=f"run `agentrl data build webshop --out {folder}`",
            ) from error
        self._folder = folder
        self._search = Search(self._postings)
        self.digest = str(meta["digest"])

    def __len__(self) -> int:
        return len(self._by_id)

    def product(self, asin: str) -> Product:
        wanted = asin.encode()
        rank = int(np.searchsorted(self._ids, wanted))
        if rank == len(self._ids) or self._ids[rank] != wanted:
            raise ItemError(f"webshop: no product {asin}")
        return self._read(int(self._by_id[rank]))

    def find(self, text: str, limit: int) -> list[str]:
        ranks = (self._postings.order[number] for number, _ in self._search.best(text, limit))
        return [bytes(self._ids[rank]).decode() for rank in ranks]

    def goals(self) -> list[Goal]:
        """Of people, in the benchmark's order."""
        return msgspec.json.decode((self._folder / _GOALS).read_bytes(), type=list[Goal])

    def _read(self, number: int) -> Product:
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        return msgspec.json.decode(os.pread(self._file, end - start, start), type=Product)


def is_built(folder: Path) -> bool:
    """Whether `build` came to its end there."""
    return (folder / _META).exists()


@lru_cache(maxsize=2)
def open_folder(folder: Path) -> FolderCatalogue:
    """One for each folder and process. Raises ItemError."""
    return FolderCatalogue(folder)


def build(products: Iterable[Product], folder: Path, progress: Progress = lambda _: None) -> int:
    """Write a catalogue and its index to `folder`; how many products it holds.

    A product whose id was there before is left out. `progress` is told the number so far. Memory
    holds a block of postings, the vocabulary and the ids, whatever the texts' size.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (_META, _GOALS, _IDS, _BY_ID, _RECORDS, _RECORD_ENDS, *FILES):
        (folder / name).unlink(missing_ok=True)  # who has mapped it keeps what was there
    digest, ends, numbers = hashlib.sha256(), [0], dict[bytes, int]()
    wishes: list[Product] = []
    with closing(Indexer(folder)) as indexer, (folder / _RECORDS).open("wb") as file:
        for product in products:
            asin = product.asin.encode()
            if asin in numbers or len(asin) > ID_BYTES:
                continue
            numbers[asin] = len(numbers)
            record = msgspec.json.encode(product)
            file.write(record)
            digest.update(record)
            ends.append(ends[-1] + len(record))
            indexer.add(product.asin, product.text)
            if product.wishes:
                wishes.append(product)
            if len(numbers) % REPORT == 0:
                progress(len(numbers))
        indexer.write()
    np.array(ends, np.int64).tofile(folder / _RECORD_ENDS)
    (folder / _GOALS).write_bytes(msgspec.json.encode(goals.human_goals(wishes)))
    _write_ids(folder, numbers)
    meta = {"format": FORMAT, "products": len(numbers), "digest": digest.hexdigest()[:16]}
    (folder / _META).write_text(json.dumps(meta))
    return len(numbers)


def _write_ids(folder: Path, numbers: Mapping[bytes, int]) -> None:
    ids = sorted(numbers)
    np.array(ids, dtype=f"S{ID_BYTES}").tofile(folder / _IDS)
    np.array([numbers[each] for each in ids], np.uint32).tofile(folder / _BY_ID)
