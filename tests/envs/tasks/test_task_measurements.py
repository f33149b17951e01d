"""Figures of every task: what is measured of a dataset, and what nothing is measured of."""

import json
from pathlib import Path

from agentrl.envs.tasks.check import Settings
from agentrl.envs.tasks.task_measurements import origin_figures

QUESTION = {
    "description": "Where does Kim live?",
    "label": ["Oslo"],
    "type": ["other"],
    "table": {
        "table_name": "Staff",
        "table_info": {"columns": [{"name": "home"}], "rows": [["Oslo"]]},
    },
}


def measured(folder: Path, *lines: object) -> dict[str, bool | None]:
    path = folder / "dbbench" / "agentbench_dev.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(map(json.dumps, lines)))
    found = origin_figures("dbbench", "agentbench", Settings(data=str(folder)))
    return {figure.name: figure.ok for figure in found}


def test_a_split_without_items_is_wrong_and_has_no_expert(tmp_path: Path) -> None:
    assert measured(tmp_path) == {"items dev": False, "items standard": None}


def test_one_split_alone_shares_nothing_and_says_nothing_about_it(tmp_path: Path) -> None:
    assert measured(tmp_path, QUESTION) == {
        "items dev": True,
        "expert dev": True,
        "items standard": None,
    }
