"""WebShop's data."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.datasets import Dataset, locate, read_json
from agentrl.envs.tasks.webshop.catalogue.catalogue import MemoryCatalogue
from agentrl.envs.tasks.webshop.catalogue.product import (
    Product,
    from_document,
    from_record,
    records,
)

SAMPLE = Dataset(
    task="webshop",
    name="sample",
    paths=("webshop/documents_1k.jsonl", "webshop/items_ins_v2_1000.json"),
    source="github.com/WillDreamer/webshop-minimal: documents.jsonl of 1,000 products, as "
    "documents_1k.jsonl; items_ins_v2_1000.json as in github.com/princeton-nlp/WebShop",
    licence="WebShop: MIT; texts of products: their sellers'",
    items="1,000 products; 6,910 synthetic goals, 13 of people",
)
AGENTBENCH = Dataset(
    task="webshop",
    name="agentbench",
    paths=(
        "webshop/items_shuffle.json",
        "webshop/items_ins_v2.json",
        "webshop/items_human_ins.json",
    ),
    source="github.com/princeton-nlp/WebShop: setup.sh -d all, folder data",
    licence="WebShop: MIT; texts of products: their sellers'",
    items="1.18 million products; 12,087 goals of people",
)
DATASETS = (SAMPLE, AGENTBENCH)


def sample(data: str = "") -> MemoryCatalogue:
    """The catalogue of 1,000 products. Raises ItemError."""
    return _sample(locate(SAMPLE, data) / "webshop")


def agentbench_products(data: str = "") -> Iterator[Product]:
    """All products of the benchmark, read bit by bit. Raises ItemError."""
    folder = locate(AGENTBENCH, data) / "webshop"
    templates = read_json(folder / "items_ins_v2.json", dict[str, Any])
    people = read_json(folder / "items_human_ins.json", dict[str, Any])
    for record in records(folder / "items_shuffle.json"):
        product = from_record(record, templates, people)
        if product is not None:
            yield product


@lru_cache(maxsize=1)
def _sample(folder: Path) -> MemoryCatalogue:
    templates = read_json(folder / "items_ins_v2_1000.json", dict[str, Any])
    path = folder / "documents_1k.jsonl"
    lines = path.read_bytes().splitlines()
    try:
        products = [from_document(msgspec.json.decode(line), templates) for line in lines]
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ItemError(f"webshop: {path}: {error!r}") from error
    return MemoryCatalogue(products)
