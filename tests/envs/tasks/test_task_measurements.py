"""Figures of every task: what is measured of a dataset, and what nothing is measured of."""

import json
from pathlib import Path

from agentbench_records import QUESTION

from agentrl.envs.tasks.check import Figure, Settings
from agentrl.envs.tasks.task_measurements import origin_figures


def figures(folder: Path, *lines: object, limit: int = 0) -> list[Figure]:
    path = folder / "dbbench" / "agentbench_dev.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(map(json.dumps, lines)))
    return list(origin_figures("dbbench", "agentbench", Settings(limit=limit, data=str(folder))))


def measured(folder: Path, *lines: object) -> dict[str, bool | None]:
    return {figure.name: figure.ok for figure in figures(folder, *lines)}


def test_a_split_without_items_is_wrong_and_has_no_expert(tmp_path: Path) -> None:
    assert measured(tmp_path) == {"items dev": False, "items standard": None}


def test_one_split_alone_shares_nothing_and_says_nothing_about_it(tmp_path: Path) -> None:
    assert measured(tmp_path, QUESTION) == {
        "items dev": True,
        "expert dev": True,
        "items standard": None,
    }


def test_the_items_of_an_expert_come_from_the_whole_split(tmp_path: Path) -> None:
    """The first half of them has an order whose hash is wrong."""
    insert = {"label": ["INSERT INTO `Staff` VALUES ('Rome')"], "answer_md5": "0" * 32}
    order = QUESTION | insert | {"type": ["INSERT"]}
    found = figures(tmp_path, *[order] * 6, *[QUESTION] * 6, limit=4)
    (expert,) = (figure.value for figure in found if figure.name == "expert dev")
    assert expert.startswith("25.0% (1/4)")  # of the items 0, 2, 5 and 10
