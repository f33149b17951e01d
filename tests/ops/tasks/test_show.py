"""What there is, and what an agent is told."""

import json
from pathlib import Path

import pytest
from task_plugin import add_task

from agentrl.core.errors import ItemError
from agentrl.envs import registry
from agentrl.envs.contract import Tool
from agentrl.ops.tasks.show import ItemChoice, list_tasks, read_options, show_item, tool_text

Captured = pytest.CaptureFixture[str]
BARREN = """
from agentrl.core.errors import ItemError

def source(options):
    raise ItemError("no such data")
"""


def test_every_task_is_listed_with_its_origins(capsys: Captured) -> None:
    list_tasks(as_json=True)
    found = {each["task"]: each for each in json.loads(capsys.readouterr().out)}
    assert set(found) == set(registry.names())
    datasets = ["agentbench", "wikitablequestions", "wikitables"]
    assert found["dbbench"]["origins"] == ["generated", *datasets]
    assert found["maths"]["origins"] == ["generated", "reasoning-gym", "gsm8k"]
    assert found["alfworld"]["origins"] == ["generated", "agentbench"]
    assert found["dbbench"]["splits"] == ["train", "test"]
    assert found["dbbench"]["max_turns"] == 15
    list_tasks(as_json=False)
    listed = capsys.readouterr().out
    assert "agentrl.envs.tasks.dbbench.task_source" in listed
    assert "needs options program, items, reward" in listed


def test_a_task_that_cannot_be_loaded_is_listed_with_the_reason(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_task(tmp_path, monkeypatch, "barren", BARREN)
    list_tasks(as_json=False)
    assert "no such data" in capsys.readouterr().out


def test_gold_is_shown_only_to_who_asks(capsys: Captured) -> None:
    chosen = ItemChoice("dbbench", {"items": 3}, item="2")
    show_item(chosen, gold=False)
    told = capsys.readouterr().out
    assert "── tool execute_sql(query*: string)" in told
    assert "── user" in told
    assert "gold" not in told
    show_item(chosen, gold=True)
    assert '"gold_sql": "select' in capsys.readouterr().out


def test_an_item_is_named_by_its_place_or_its_id(capsys: Captured) -> None:
    items = registry.source("dbbench", {"test_items": 3}).items("test")
    for name in ("1", items[1].item_id):
        show_item(ItemChoice("dbbench", {"test_items": 3}, "test", name), gold=False)
        assert capsys.readouterr().out.startswith(f"dbbench {items[1].item_id}, at most 15 turns")


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        (ItemChoice("dbbench", {"items": 3}, item="3"), "split train has no item 3"),
        (ItemChoice("dbbench", {"items": 3}, item="-1"), "split train has no item -1"),
        (ItemChoice("dbbench", {}, "tests"), "no split tests; did you mean test"),
        (ItemChoice("dbbnch", {}), "unknown task dbbnch; did you mean dbbench"),
        (ItemChoice("dbbench", {"stile": "full"}), "unknown option stile; did you mean style"),
    ],
)
def test_what_is_not_there_is_an_error_that_names_it(chosen: ItemChoice, error: str) -> None:
    with pytest.raises(ItemError, match=error):
        show_item(chosen, gold=False)


def test_a_split_without_items_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "dbbench").mkdir()
    (tmp_path / "dbbench" / "agentbench_dev.jsonl").write_text("")
    options = {"origin": "agentbench", "data": str(tmp_path)}
    with pytest.raises(ItemError, match="dbbench: split dev is empty"):
        show_item(ItemChoice("dbbench", options), gold=False)


def test_options_are_json_or_text() -> None:
    options = read_options(
        ["items=3", "style=compact", 'x=["a"]', "y=a=b"], difficulty="hard", origin=""
    )
    assert options == {
        "items": 3,
        "style": "compact",
        "x": ["a"],
        "y": "a=b",
        "difficulty": "hard",
    }
    with pytest.raises(ItemError, match="--option items has no value"):
        read_options(["items"])


def test_a_tool_is_shown_with_kinds_choices_and_what_is_required() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"enum": ["x", "y"]},
            "b": {"type": "array", "items": {}},
            "c": {"type": "array", "items": [{"type": "string"}]},
            "d": {},
            "e": True,
        },
        "required": ["a"],
    }
    shown = "f(a*: x | y, b: array, c: array, d: any, e: any)"
    assert tool_text(Tool("f", "Do.", schema)) == f"\n── tool {shown}\nDo."
