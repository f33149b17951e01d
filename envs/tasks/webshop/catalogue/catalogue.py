"""What the shop sells: products by id and by search, in memory or in a folder all share."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.webshop import goals
from agentrl.envs.tasks.webshop.catalogue.product import Product
from agentrl.envs.tasks.webshop.catalogue.search import SearchIndex, map_array
from agentrl.envs.tasks.webshop.goals import Goal

FORMAT = 2
ID_BYTES = 10
REPORT = 10_000  # products between two reports of progress
_META, _GOALS, _IDS, _BY_ID = "shop.json", "goals.json", "ids", "by_id"
_RECORDS, _RECORD_ENDS, _SEARCH = "records", "record_ends", "search"

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
        self._search = SearchIndex.build(each.text for each in self.products)
        self.digest = hashlib.sha256(msgspec.json.encode(self.products)).hexdigest()[:16]

    def product(self, asin: str) -> Product:
        if asin not in self._by_id:
            raise ItemError(f"webshop: no product {asin}")
        return self._by_id[asin]

    def find(self, text: str, limit: int) -> list[str]:
        return [self.products[number].asin for number in self._search.best(text, limit)]


class FolderCatalogue:
    """What `build` left in a folder. Records are read when asked for, the index is mapped."""

    def __init__(self, folder: Path) -> None:
        try:
            meta = json.loads((folder / _META).read_text())
            if meta.get("format") != FORMAT:
                raise ItemError(
                    f"webshop: {folder} is of format {meta.get('format')}, not {FORMAT}",
                    hint=f"run `agentrl data build webshop --out {folder}`",
                )
            self._search = SearchIndex.open(folder / _SEARCH)
            self._offsets = map_array(folder / _RECORD_ENDS, np.int64)
            self._ids = map_array(folder / _IDS, f"S{ID_BYTES}")
            self._by_id = map_array(folder / _BY_ID, np.int64)
            self._file = os.open(folder / _RECORDS, os.O_RDONLY)
        except (OSError, ValueError) as error:
            raise ItemError(
                f"webshop: no index in {folder}: {error}",
                hint=f"run `agentrl data build webshop --out {folder}`",
            ) from error
        self._folder = folder
        self.digest = str(meta["digest"])

    def __len__(self) -> int:
        return len(self._by_id)

    def product(self, asin: str) -> Product:
        wanted = asin.encode()
        rank = int(np.searchsorted(self._ids, wanted, sorter=self._by_id))
        if rank == len(self._ids) or self._ids[self._by_id[rank]] != wanted:
            raise ItemError(f"webshop: no product {asin}")
        return self._read(int(self._by_id[rank]))

    def find(self, text: str, limit: int) -> list[str]:
        return [bytes(self._ids[number]).decode() for number in self._search.best(text, limit)]

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
    """Write a catalogue and its index to `folder`; return how many products it holds.

    Only the first product of an id is kept. `progress` is called with the number so far. Memory
    holds the terms of all texts; docs/measurements.md says how much of 1.18 million products.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (_META, _GOALS, _IDS, _BY_ID, _RECORDS, _RECORD_ENDS):
        (folder / name).unlink(missing_ok=True)  # who has mapped it keeps what was there
    shutil.rmtree(folder / _SEARCH, ignore_errors=True)
    writer = _RecordWriter(folder, progress)
    SearchIndex.build(writer.texts(products)).save(folder / _SEARCH)
    ids = np.array(list(writer.ids), dtype=f"S{ID_BYTES}")
    ids.tofile(folder / _IDS)
    np.argsort(ids, kind="stable").astype(np.int64).tofile(folder / _BY_ID)
    np.array(writer.ends, np.int64).tofile(folder / _RECORD_ENDS)
    (folder / _GOALS).write_bytes(msgspec.json.encode(goals.human_goals(writer.wishes)))
    digest = writer.digest.hexdigest()[:16]
    meta = {"format": FORMAT, "products": len(ids), "digest": digest}
    (folder / _META).write_text(json.dumps(meta))
    return len(ids)


class _RecordWriter:
    """Writes the records of products while their texts are read."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._folder, self._progress = folder, progress
        self.ids: dict[bytes, None] = {}
        self.ends = [0]
        self.wishes: list[Product] = []
        self.digest = hashlib.sha256()

    def texts(self, products: Iterable[Product]) -> Iterator[str]:
        with (self._folder / _RECORDS).open("wb") as file:
            for product in products:
                asin = product.asin.encode()
                if asin in self.ids or len(asin) > ID_BYTES:
                    continue
                self.ids[asin] = None
                record = msgspec.json.encode(product)
                file.write(record)
                self.digest.update(record)
                self.ends.append(self.ends[-1] + len(record))
                if product.wishes:
                    self.wishes.append(product)
                if len(self.ids) % REPORT == 0:
                    self._progress(len(self.ids))
                yield product.text
