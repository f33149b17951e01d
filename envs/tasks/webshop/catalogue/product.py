"""A product as the shop shows it, from the records of the benchmark."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, TextIO

import msgspec

from agentrl.core.errors import ItemError

CHUNK = 1 << 20  # characters read at once
MAX_RECORD = 1 << 26  # characters
NO_PRICE = 100.0  # dollars, where a record has none
NO_RATING = "N.A."
MAX_ID = 10  # characters of a product's id; records with longer ones are no products
_PRICE = re.compile(r"[^\d.]")


class Review(msgspec.Struct, frozen=True):
    title: str = ""
    score: str = ""
    body: str = ""


class HumanGoal(msgspec.Struct, frozen=True):
    """What a person or a template asked for, with this product in mind."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None = None


class Product(msgspec.Struct, frozen=True):
    """`prices`: dollars, one or the two ends of a range. `options`: values by kind, lower-cased.

    `wishes`: of people; `template`: the one of the benchmark's synthetic goals.
    """

    asin: str
    title: str
    prices: tuple[float, ...]
    category: str = ""
    query: str = ""
    product_category: str = ""
    description: str = ""
    features: tuple[str, ...] = ()
    options: dict[str, tuple[str, ...]] = {}
    attributes: tuple[str, ...] = ()
    rating: str = NO_RATING
    reviews: tuple[Review, ...] = ()
    wishes: tuple[HumanGoal, ...] = ()
    template: HumanGoal | None = None

    @property
    def price_tag(self) -> str:
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def price(self) -> float:
        """Dollars. Of a range, a point drawn by the product's id: the same in every process."""
        if len(self.prices) == 1:
            return self.prices[0]
        return Random(f"webshop price {self.asin}").uniform(*self.prices)

    @property
    def text(self) -> str:
        """What the search index holds of it."""
        options = ", and ".join(f"{kind}: {', '.join(of)}" for kind, of in self.options.items())
        first = self.features[0] if self.features else ""
        return " ".join([self.title, self.description, first, options]).lower()


def from_document(document: Mapping[str, Any], templates: Mapping[str, Any]) -> Product:
    """Of a line of `documents.jsonl`, whose product the benchmark has already tidied."""
    record = document["product"]
    return Product(
        asin=record["asin"],
        title=record["Title"],
        prices=tuple(float(price) for price in record["pricing"]) or (NO_PRICE,),
        category=record["category"],
        query=record["query"],
        product_category=record["product_category"],
        description=record["Description"] or "",
        features=tuple(record["BulletPoints"]),
        options={kind: tuple(values) for kind, values in record["options"].items()},
        attributes=tuple(record["Attributes"]),
        rating=str(record.get("Rating") or NO_RATING),
        reviews=tuple(_review(review) for review in record.get("Reviews", ())),
        wishes=tuple(_wish(human_goal) for human_goal in record.get("instructions", ())),
        template=_template(templates.get(record["asin"], {})),
    )


def from_record(
    record: Mapping[str, Any], templates: Mapping[str, Any], people: Mapping[str, Any]
) -> Product | None:
    """Of a record of `items_shuffle.json`; None where the benchmark leaves it out."""
    asin = record["asin"]
    if asin == "nan" or len(asin) > MAX_ID:
        return None
    features = record.get("small_description") or []
    known = templates.get(asin, {})
    return Product(
        asin=asin,
        title=record["name"],
        prices=_prices(record.get("pricing")),
        category=record["category"],
        query=record["query"].lower().strip(),
        product_category=record["product_category"],
        description=record.get("full_description") or "",
        features=tuple(features) if isinstance(features, list) else (features,),
        options=_options(record.get("customization_options") or {}),
        attributes=tuple(known.get("attributes", ("DUMMY_ATTR",))),
        wishes=tuple(_wish(human_goal) for human_goal in people.get(asin, ())),
        template=_template(known),
    )


def records(path: Path, *, chunk: int = CHUNK) -> Iterator[Any]:
    """The elements of a JSON array, read bit by bit: the file may be larger than memory.

    `chunk`: characters read at once.
    Raises ItemError where it is no array, or a record is over 64 Mi characters.
    """
    with path.open(encoding="utf-8") as file:
        rest = file.read(chunk).lstrip()
        if not rest.startswith("["):
            raise ItemError(f"webshop: {path}: not a JSON array")
        rest = rest[1:].lstrip() or file.read(chunk).lstrip()
        while not rest.startswith("]"):
            record, rest = _next(rest.removeprefix(","), file, path, chunk)
            yield record


def _next(buffer: str, file: TextIO, path: Path, chunk: int) -> tuple[Any, str]:
    """A record, and what follows it: a comma or the array's end, and more."""
    decoder = json.JSONDecoder()
    while len(buffer) <= MAX_RECORD:
        buffer = buffer.lstrip()
        try:
            record, end = decoder.raw_decode(buffer)
        except json.JSONDecodeError:
            rest = ""
        else:
            rest = buffer[end:].lstrip()
        if rest.startswith((",", "]")):
            return record, rest
        more = file.read(max(chunk, len(buffer)))
        if not more:
            break
        buffer += more
    raise ItemError(f"webshop: {path}: not a JSON array of records: {buffer[:40]!r} …")


def _prices(text: str | None) -> tuple[float, ...]:
    prices = [_PRICE.sub("", part) for part in (text or "").split("$")[1:3]]
    return tuple(float(price) for price in prices if price.strip(".")) or (NO_PRICE,)


def _options(record: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {
        kind.lower(): tuple(each["value"].strip().replace("/", " | ").lower() for each in values)
        for kind, values in record.items()
        if values is not None
    }


def _wish(record: Mapping[str, Any]) -> HumanGoal:
    return HumanGoal(
        record["instruction"],
        tuple(record["instruction_attributes"]),
        tuple(record["instruction_options"]),
    )


def _template(record: Mapping[str, Any]) -> HumanGoal | None:
    text = record.get("instruction")
    return None if text is None else HumanGoal(text, tuple(record["instruction_attributes"]))


def _review(record: Mapping[str, Any]) -> Review:
    return Review(
        str(record.get("title", "")),
        str(record.get("score", record.get("stars", ""))),
        str(record.get("body", record.get("review", ""))),
    )
