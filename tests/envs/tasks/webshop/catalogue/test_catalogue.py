"""Catalogues in folders, and the whole way of the benchmark's files."""

import json
from pathlib import Path

import pytest
from large_catalogue import products, queries

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.webshop import goals
from agentrl.envs.tasks.webshop.catalogue.catalogue import FolderCatalogue, MemoryCatalogue, build
from agentrl.envs.tasks.webshop.catalogue.product import HumanGoal, Product
from agentrl.envs.tasks.webshop.datasets import agentbench_products
from agentrl.envs.tasks.webshop.generate import catalogue


def test_a_folder_holds_what_was_written(tmp_path: Path) -> None:
    held = catalogue(0, 200)
    told: list[int] = []
    assert build([*held.products, held.products[0]], tmp_path, told.append) == 200
    opened = FolderCatalogue(tmp_path)
    assert len(opened) == 200
    for product in held.products:
        assert opened.product(product.asin) == product
    for text in ("soft rain coats", "padded chair", "wireless game mice black", ""):
        assert opened.find(text, 50) == held.find(text, 50)


def test_goals_of_people_are_kept_in_the_benchmarks_order(tmp_path: Path) -> None:
    some = [
        Product(
            f"B{number}", "Mug", (9.0,), wishes=(HumanGoal(f"mug {number}", ("big",), ("red",)),)
        )
        for number in range(20)
    ]
    build(some, tmp_path)
    assert FolderCatalogue(tmp_path).goals() == goals.human_goals(some)


@pytest.mark.parametrize("asin", ["B9", "", "A", "Z999999999999"])
def test_a_product_that_is_not_there_is_an_error(tmp_path: Path, asin: str) -> None:
    shop = [Product("B1", "Mug", (9.0,)), Product("B2", "Cup", (9.0,))]
    build(shop, tmp_path)
    for held in (FolderCatalogue(tmp_path), MemoryCatalogue(shop)):
        with pytest.raises(ItemError, match="no product"):
            held.product(asin)


def test_a_folder_without_a_catalogue_says_how_to_build_one(tmp_path: Path) -> None:
    with pytest.raises(ItemError, match="no index") as caught:
        FolderCatalogue(tmp_path)
    assert "build" in caught.value.hint


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    build([Product("B1", "Mug", (9.0,))], tmp_path)
    (tmp_path / "shop.json").write_text(json.dumps({"format": 0, "digest": ""}))
    with pytest.raises(ItemError, match="format 0"):
        FolderCatalogue(tmp_path)


def test_who_serves_a_catalogue_keeps_it_while_another_is_built(tmp_path: Path) -> None:
    shop = [Product(f"B{number}", "Oak mug", (9.0,)) for number in range(300)]
    build(shop, tmp_path)
    served = FolderCatalogue(tmp_path)
    build([Product("A1", "Cup", (1.0,))], tmp_path)
    assert served.find("mug", 3) == ["B0", "B1", "B2"]
    assert served.product("B299") == shop[299]
    assert FolderCatalogue(tmp_path).find("cup", 3) == ["A1"]


def test_a_build_that_was_cut_off_is_no_catalogue(tmp_path: Path) -> None:
    build([Product("B1", "Mug", (9.0,))], tmp_path)

    def broken() -> object:
        yield Product("B1", "Mug", (9.0,))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(broken(), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ItemError, match="no index"):
        FolderCatalogue(tmp_path)


def test_the_benchmarks_files_become_products_and_goals(tmp_path: Path) -> None:
    (tmp_path / "webshop").mkdir()
    record: dict[str, object] = {"name": "Mug", "category": "c", "query": "Mugs"}
    record |= {"product_category": "p"}
    record |= {"full_description": "", "small_description": [], "pricing": "$5", "images": ["x"]}
    shop = [{**record, "asin": asin, "customization_options": None} for asin in ("B1", "nan", "B2")]
    human_goal = {
        "instruction": "a mug",
        "instruction_attributes": ["big"],
        "instruction_options": [],
    }
    for name, value in (
        ("items_shuffle.json", shop),
        ("items_ins_v2.json", {"B1": {"attributes": ["big"]}}),
        ("items_human_ins.json", {"B2": [human_goal]}),
    ):
        (tmp_path / "webshop" / name).write_text(json.dumps(value))
    folder = tmp_path / "index"
    assert build(agentbench_products(str(tmp_path)), folder) == 2
    opened = FolderCatalogue(folder)
    assert [goal.asin for goal in opened.goals()] == ["B2"]
    assert opened.product("B2").attributes == ("DUMMY_ATTR",)
    assert opened.find("mugs", 5) == ["B1", "B2"]


def test_made_up_texts_are_as_long_as_real_ones() -> None:
    """The sample's texts have 124 words, of them 68 different terms, on average."""
    some = list(products(400))
    lengths = [len(product.text.split()) for product in some]
    assert 100 < sum(lengths) / len(lengths) < 150
    assert some == list(products(400))
    assert len(set(queries(20))) == 20
