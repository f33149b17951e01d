"""Products from the benchmark's records."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.webshop.catalogue.product import (
    HumanGoal,
    Product,
    from_document,
    from_record,
    records,
)

RECORD = {
    "asin": "B1",
    "name": "Mug",
    "category": "garden",
    "query": " Tea Mugs ",
    "product_category": "Home › Mugs",
    "full_description": None,
    "small_description": ["Holds tea."],
    "pricing": "$1,019.50 - $27.00",
    "customization_options": {
        "Color": [{"value": " Red/Blue "}, {"value": "Green"}],
        "Size": None,
    },
    "images": ["x"],
}
TEMPLATES = {"B1": {"attributes": ["heat safe"], "instruction_attributes": ["heat safe"]}}


def test_a_record_is_read_as_the_benchmark_reads_it() -> None:
    human_goal = {
        "instruction": "a mug",
        "instruction_attributes": ["safe"],
        "instruction_options": [],
    }
    templates = {"B1": {**TEMPLATES["B1"], "instruction": "Find me mugs"}}
    assert from_record(RECORD, templates, {"B1": [human_goal]}) == Product(
        asin="B1",
        title="Mug",
        prices=(1019.5, 27.0),
        category="garden",
        query="tea mugs",
        product_category="Home › Mugs",
        features=("Holds tea.",),
        options={"color": ("red | blue", "green")},
        attributes=("heat safe",),
        wishes=(HumanGoal("a mug", ("safe",), ()),),
        template=HumanGoal("Find me mugs", ("heat safe",)),
    )


@pytest.mark.parametrize("asin", ["nan", "B0123456789"])
def test_records_without_a_proper_id_are_left_out(asin: str) -> None:
    assert from_record({**RECORD, "asin": asin}, {}, {}) is None


@pytest.mark.parametrize(
    ("pricing", "prices", "tag"),
    [
        (None, (100.0,), "$100.0"),
        ("", (100.0,), "$100.0"),
        ("$5", (5.0,), "$5.0"),
        ("$1.50$2.50$9", (1.5, 2.5), "$1.5 to $2.5"),
    ],
)
def test_prices_are_one_or_a_range(
    pricing: str | None, prices: tuple[float, ...], tag: str
) -> None:
    found = from_record({**RECORD, "pricing": pricing}, {}, {})
    assert found is not None
    assert (found.prices, found.price_tag) == (prices, tag)


def test_a_price_of_a_range_is_the_same_every_time_and_inside() -> None:
    ranged = Product("B1", "Mug", (2.0, 3.0))
    assert 2.0 <= ranged.price <= 3.0
    assert ranged.price == Product("B1", "Other", (2.0, 3.0)).price
    assert ranged.price != Product("B2", "Mug", (2.0, 3.0)).price


def test_a_product_without_a_template_has_no_wish_of_one() -> None:
    found = from_record(RECORD, TEMPLATES, {})
    assert found is not None
    assert (found.template, found.attributes) == (None, ("heat safe",))


def test_the_text_of_the_index_is_that_of_the_benchmarks_documents() -> None:
    shop = Product("B1", "Mug", (1.0,), description="Big", features=("Hot", "Not"))
    assert shop.text == "mug big hot "
    options = {"color": ("red", "tan"), "size": ("small",)}
    both = Product("B1", "Mug", (1.0,), options=options)
    assert both.text == "mug   color: red, tan, and size: small"


def test_a_document_of_the_sample_has_the_text_it_is_indexed_by(tmp_path: Path) -> None:
    inner: dict[str, object] = {"asin": "B1", "Title": "Mug", "pricing": [3], "category": "c"}
    inner |= {
        "query": "q",
        "product_category": "p",
        "Description": "D",
        "BulletPoints": ["F"],
        "options": {},
    }
    found = from_document({"product": {**inner, "Attributes": ["a"]}}, {})
    assert (found.text, found.price, found.rating) == ("mug d f ", 3.0, "N.A.")


@settings(max_examples=25)
@given(st.lists(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4)))
def test_an_array_is_read_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, values: list[object]
) -> None:
    path = tmp_path_factory.mktemp("records") / "items.json"
    for indent in (None, 2):
        path.write_text(json.dumps(values, indent=indent))
        assert list(records(path, chunk=7)) == values


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a"', "[1, 2", "", "{}", "[1 2]", "[,"])
def test_an_array_that_ends_early_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "items.json"
    path.write_text(text)
    with pytest.raises(ItemError, match=r"items\.json"):
        list(records(path))
