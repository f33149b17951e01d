"""The benchmark's format, with items of our own."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.core.errors import ItemError
from agentrl.envs import registry
from agentrl.envs.server.in_process import play
from agentrl.envs.tasks.bfcl import check, datasets
from agentrl.envs.tasks.check import Settings
from agentrl.envs.tasks.datasets import MissingDataset

CONFIG = {
    "root": {
        "home": {
            "type": "directory",
            "contents": {"a.txt": {"type": "file", "content": "one\ntwo"}},
        }
    }
}
OWN_DOCUMENTS: dict[str, list[dict[str, Any]]] = {
    "GorillaFileSystem": [
        {
            "name": "tail",
            "description": "The end of a file.",
            "parameters": {
                "type": "dict",
                "properties": {
                    "file_name": {"type": "string", "description": "Which."},
                    "lines": {"type": "integer", "description": "How many.", "default": 10},
                },
                "required": ["file_name"],
            },
            "response": {"type": "dict", "properties": {}},
        },
        {
            "name": "touch",
            "description": "A new file.",
            "parameters": {
                "type": "dict",
                "properties": {"file_name": {"type": "string", "description": "Its name."}},
                "required": ["file_name"],
            },
        },
    ],
    "MathAPI": [
        {
            "name": "mean",
            "description": "The mean.",
            "parameters": {
                "type": "dict",
                "properties": {"numbers": {"type": "array", "items": {"type": "float"}}},
                "required": ["numbers"],
            },
        }
    ],
    "TicketAPI": [
        {
            "name": "edit_ticket",
            "description": "Change it.",
            "parameters": {
                "type": "dict",
                "properties": {
                    "ticket_id": {"type": "integer"},
                    "updates": {"type": "dict", "properties": {"status": {"type": "string"}}},
                },
                "required": ["ticket_id", "updates"],
            },
        }
    ],
}


def line(number: int, classes: list[str], **more: Any) -> dict[str, Any]:
    user = {"role": "user", "content": f"Request {number}"}
    return {
        "id": f"multi_turn_base_{number}",
        "question": [[user], [user]],
        "initial_config": {"GorillaFileSystem": CONFIG},
        "path": [],
        "involved_classes": classes,
    } | more


QUESTIONS = [
    line(0, ["GorillaFileSystem", "MathAPI"]),
    line(1, ["TravelAPI", "GorillaFileSystem"]),
    line(2, ["TravelAPI"]),
    line(3, ["GorillaFileSystem"], excluded_function=["touch"]),
    line(4, ["GorillaFileSystem"]),
    line(5, ["GorillaFileSystem"]),
    line(6, ["GorillaFileSystem"]),
]
TRUTH = [
    ["tail(file_name='a.txt', lines=1)", "mean([3, 4])"],
    ["touch(file_name='b.txt')"],
]
ANSWERS = [
    {"id": "multi_turn_base_0", "ground_truth": TRUTH},
    {"id": "multi_turn_base_1", "ground_truth": TRUTH},
    {"id": "multi_turn_base_2", "ground_truth": TRUTH},
    {"id": "multi_turn_base_3", "ground_truth": [["tail('a.txt')"], []]},
    {"id": "multi_turn_base_4", "ground_truth": [["tail(open('x'))"], []]},
    {"id": "multi_turn_base_5", "ground_truth": [["tail('a.txt')"]]},
]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def data(tmp_path: Path) -> str:
    home = tmp_path / "bfcl"
    for split, name in datasets.SPLITS.items():
        write(home / name, QUESTIONS if split == "base" else [])
        write(home / "possible_answer" / name, ANSWERS if split == "base" else [])
    for kind, name in datasets.DOCUMENTS.items():
        write(home / "multi_turn_func_doc" / name, OWN_DOCUMENTS.get(kind, []))
    return str(tmp_path)


def test_published_items_are_played_and_won_by_their_own_truth(data: str) -> None:
    source = registry.source("bfcl", {"origin": "v3", "data": data})
    assert source.splits == ("base", "miss_param")
    items = source.items("base")
    assert [item.item_id for item in items] == ["multi_turn_base_0", "multi_turn_base_3"]
    for item in items:
        assert play(source, item, source.expert(item, seed=0)).score == 1.0


def test_items_that_are_not_covered_are_counted_and_say_why(data: str) -> None:
    refused = datasets.imported("base", data).refused
    assert refused["multi_turn_base_1"] == refused["multi_turn_base_2"] == "class TravelAPI"
    assert "call \"tail(open('x'))\"" in refused["multi_turn_base_4"]
    assert refused["multi_turn_base_5"] == "2 turns, 1 answers"
    assert refused["multi_turn_base_6"] == "it has no possible answer"
    figures = {each.name: each.value for each in check.figures(Settings(data=data))}
    assert figures["v3 base items"].startswith("2 of 7; class TravelAPI: 2; ")
    assert figures["v3 base with a refused call in the truth"] == "0 of 2"


def test_a_truth_that_is_refused_here_is_counted(data: str) -> None:
    rows = [{"id": "multi_turn_base_0", "ground_truth": [["tail('gone.txt')"], []]}]
    write(Path(data) / "bfcl" / "possible_answer" / datasets.SPLITS["base"], rows)
    figures = {each.name: each.value for each in check.figures(Settings(data=data))}
    assert figures["v3 base with a refused call in the truth"] == "1 of 1"


def test_tools_are_the_documents_as_json_schemas(data: str) -> None:
    source = registry.source("bfcl", {"origin": "v3", "data": data})
    first, second = (source.make(item).tools for item in source.items("base"))
    assert [tool.name for tool in first] == ["tail", "touch", "mean"]
    assert [tool.name for tool in second] == ["tail"]
    assert first[0].parameters == {
        "type": "object",
        "properties": {
            "file_name": {"type": "string", "description": "Which."},
            "lines": {"type": "integer", "description": "How many.", "default": 10},
        },
        "required": ["file_name"],
        "additionalProperties": False,
    }
    assert first[2].parameters["properties"]["numbers"]["items"] == {"type": "number"}
    edited = datasets.parameters(OWN_DOCUMENTS["TicketAPI"][0]["parameters"])
    assert edited["properties"]["updates"]["additionalProperties"] is True


def test_a_document_of_an_unknown_function_is_refused(data: str) -> None:
    path = Path(data) / "bfcl" / "multi_turn_func_doc" / "math_api.json"
    write(path, [{"name": "cat", "description": "", "parameters": {"type": "dict"}}])
    with pytest.raises(ItemError, match=r"math_api\.json: MathAPI has no function cat"):
        datasets.imported("base", data)


def test_a_line_that_cannot_be_read_names_file_and_line(data: str) -> None:
    path = Path(data) / "bfcl" / datasets.SPLITS["base"]
    path.write_text(json.dumps(QUESTIONS[0]) + '\n{"id": 3}\n')
    with pytest.raises(ItemError, match=r"BFCL_v3_multi_turn_base.json, line 2: Expected `str`"):
        datasets.imported("base", data)


def test_a_file_that_is_missing_is_named(data: str) -> None:
    (Path(data) / "bfcl" / "multi_turn_func_doc" / "math_api.json").unlink()
    with pytest.raises(MissingDataset, match=r"has no bfcl/multi_turn_func_doc/math_api\.json"):
        datasets.imported("base", data)
