"""Episodes that rules in SQL choose for fine-tuning."""

import json
from pathlib import Path

import pytest
from recorded_episodes import RecordedRun
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.core.errors import StoreError
from agentrl.ops.export.curation import curate
from agentrl.ops.export.episodes import ExportRequest

SOLVED = "SELECT episode_id FROM episodes WHERE score >= 1"
SHORTEST = """
SELECT task, episode_id FROM (
  SELECT task, episode_id, ROW_NUMBER() OVER (PARTITION BY task ORDER BY turns, episode_id) AS place
  FROM episodes WHERE score >= 1) ranked
WHERE place = 1
"""


@pytest.fixture
def played(recorded: RecordedRun) -> RecordedRun:
    """Two tasks with two experts' episodes and a faulty one's each."""
    for task in ("alfworld", "dbbench"):
        for number, noise in enumerate((0.0, 0.0, 0.9)):
            recorded.record(task, number, noise)
    return recorded


def test_an_episode_that_passes_every_rule_is_a_line(played: RecordedRun, tmp_path: Path) -> None:
    out, file = tmp_path / "out.jsonl", tmp_path / "shortest.sql"
    file.write_text(SHORTEST)
    argv = ["curate", str(played.path), str(out), "--rule", SOLVED, "--rule", str(file)]
    ended = CliRunner().invoke(app, argv, catch_exceptions=False)
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    solved = [body for body in played.bodies.values() if body.score >= 1]
    shortest = {
        min((body.turns, body.episode_id) for body in solved if body.task == task)[1]
        for task in ("alfworld", "dbbench")
    }
    assert len(solved) > 2
    assert {line["episode_id"] for line in lines} == shortest
    assert all(line["messages"][-1]["role"] == "assistant" for line in lines)
    head, first, second, last = ended.output.splitlines()
    assert head.split() == ["rule", "passed", "kept"]
    assert first.split()[-2:] == [str(len(solved))] * 2
    assert second.split()[-2:] == ["2", "2"]
    assert last == f"2 episodes in {out}"


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (["SELECT item_id FROM episodes"], "has no column episode_id, only item_id"),
        (["SELECT episode_id FROM episodes WHERE score > 2"], "none of 6 finished episodes passes"),
        (
            [SOLVED, "SELECT episode_id FROM episodes WHERE score < 1"],
            "none of 6 finished episodes passes it with the rules before it",
        ),
        (["DELETE FROM episodes"], "DELETE is refused"),
        (["SELECT episode_id FROM nowhere"], "no such table: nowhere"),
    ],
)
def test_rules_that_choose_nothing_are_refused(
    played: RecordedRun, tmp_path: Path, rules: list[str], reason: str
) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.raises(StoreError, match=reason):
        curate(ExportRequest(played.path, out), rules)
    assert not out.exists()


def test_a_rule_that_cannot_be_read_is_named(played: RecordedRun, tmp_path: Path) -> None:
    latin = tmp_path / "latin.sql"
    latin.write_bytes("SELECT 'é'".encode("latin-1"))
    for file, reason in ((latin, "'utf-8' codec"), (tmp_path / "absent.sql", "No such file")):
        with pytest.raises(StoreError, match=f"rule {file}: .*{reason}"):
            curate(ExportRequest(played.path, tmp_path / "out.jsonl"), [str(file)])
