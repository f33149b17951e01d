"""Figures of the benchmark's items: each kind has its own number, and none is not all."""

import json
from itertools import islice
from pathlib import Path

from agentrl.envs.tasks.check import Figure, Settings
from agentrl.envs.tasks.dbbench.check import figures

QUESTION = {
    "description": "Where does Kim live?",
    "label": ["Oslo"],
    "type": ["other"],
    "table": {
        "table_name": "Staff",
        "table_info": {"columns": [{"name": "home"}], "rows": [["Oslo"]]},
    },
}


def gold(folder: Path, questions: int, limit: int) -> dict[str, Figure]:
    (folder / "dbbench").mkdir()
    lines = [json.dumps(QUESTION)] * questions
    (folder / "dbbench" / "agentbench_dev.jsonl").write_text("\n".join(lines))
    measured = figures(Settings(data=str(folder), limit=limit))
    return {figure.name.rpartition(" ")[2]: figure for figure in islice(measured, 3)}


def test_a_kind_of_which_there_is_no_item_does_not_pass(tmp_path: Path) -> None:
    found = gold(tmp_path, questions=5, limit=2)
    assert found["query"] == Figure("gold on SQLite: query", "2/2", "2/2", ok=True)
    assert found["INSERT"] == Figure("gold on SQLite: INSERT", "0/0", "2/2", ok=False)


def test_fewer_items_than_the_benchmark_has_are_not_all_of_them(tmp_path: Path) -> None:
    found = gold(tmp_path, questions=5, limit=0)
    assert (found["query"].value, found["query"].wanted) == ("5/5", "20/20")
    assert found["query"].ok is False
