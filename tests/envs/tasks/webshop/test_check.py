"""Figures of a sample that is there and holds nothing."""

from pathlib import Path

from agentrl.envs.tasks.check import Settings
from agentrl.envs.tasks.webshop.check import figures


def test_nothing_passes_over_an_empty_sample(tmp_path: Path) -> None:
    (tmp_path / "webshop").mkdir()
    (tmp_path / "webshop" / "documents_1k.jsonl").write_text("")
    (tmp_path / "webshop" / "items_ins_v2_1000.json").write_text("{}")
    found = {figure.name: figure for figure in figures(Settings(data=str(tmp_path)))}
    assert found["the wanted purchases"].value == "webshop: the sample has no goal"
    assert not [figure for figure in found.values() if figure.ok]
