"""The first ten minutes: the command a stranger types."""

import io
import json
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from history import begun, trained
from rich.console import Console
from running import ROOT
from sqlalchemy import update

from core import loading
from core.types import GroupState
from db import progress
from db.models import Group
from ops.quickstart_report import measured, resumed
from ops.quickstart_view import View


def test_who_interrupts_is_told_what_goes_on_and_what_gives_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command as this shell finds it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv/bin/agentrl"), "quickstart"])
    monkeypatch.setenv("PATH", "")
    path, agentrl = Path("runs/one/config.toml"), ".venv/bin/agentrl"
    table = (
        f"{agentrl} eval {path} --checkpoints 0,latest and "
        f"{agentrl} eval compare {path} 0 latest give the table"
    )
    assert measured(path) == table
    assert resumed(path) == f"{agentrl} up {path} resumes the run; then {table}"


def test_a_line_of_the_training_counts_groups_that_were_dropped_and_why(tmp_path: Path) -> None:
    store, run_id = begun(f"sqlite:///{tmp_path / 'store.db'}")
    output = io.StringIO()
    view = View(Console(file=output, width=1000), loading.loads("[tasks.dbbench]"))
    with closing(store):
        trained(store, run_id, 3)
        for state, group_id in (
            (GroupState.STALE, f"{run_id}-dbbench-1"),
            (GroupState.STALE, f"{run_id}-alfworld-3"),
            (GroupState.FILTERED, f"{run_id}-dbbench-2"),
        ):
            closed = update(Group).where(Group.group_id == group_id).values(state=state)
            store.transact(lambda session, closed=closed: session.execute(closed))
        view.training(store.ask(lambda s: progress.totals(s, run_id)), store, run_id)
    line = output.getvalue()
    assert "| no spread 1 groups dropped and refilled | too stale 2 groups thrown away |" in line


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_the_quickstart_trains_and_ends_with_one_json_line() -> None:
    command = [sys.executable, "-m", "cli.main", "quickstart", "--fast", "--updates", "3", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    said = json.loads(line)
    assert set(said["before"]) == set(said["after"]) == {"dbbench", "alfworld"}
    assert all(0.0 < p < 1.0 for p in said["before"].values())
    assert said["updates"] == 3
    assert said["episodes"] >= 3 * 8
    assert said["accounting_ok"]
    assert said["policy_mix"]["current"] > said["policy_mix"]["lagged"] > 0
    (path,) = re.findall(r"agentrl eval compare (\S+) 0 latest", ended.stderr)
    compare = [sys.executable, "-m", "cli.main", "eval", "compare", path, "0", "latest", "--json"]
    told = subprocess.run(compare, cwd=ROOT, capture_output=True, text=True, check=True)
    kept = {(row["task"], row["temperature"]): row for row in json.loads(told.stdout)}
    for task in said["before"]:
        for temperature, decoding in ((1.0, ""), (0.0, "_greedy")):
            row = kept[task, temperature]
            assert row["first"] == pytest.approx(said[f"before{decoding}"][task], abs=1e-4)
            assert row["second"] == pytest.approx(said[f"after{decoding}"][task], abs=1e-4)
