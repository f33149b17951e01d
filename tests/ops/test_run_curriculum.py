"""A whole run on the embedded default: a task that cannot be solved gets the smaller share."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, agentrl, eventually
from sqlalchemy import text

from db import progress, runs
from db.store import open_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]

SETTINGS = {
    "RUN__NAME": "curriculum",
    "RUN__STOP_UPDATES": "9",  # shares are decided once a version, and dbbench may stand still
    "MODEL__PATH": str(ROOT / "models" / "tiny"),
    "DISPATCH__GROUPS_PER_UPDATE": "3",
    "DISPATCH__GROUP_SIZE": "4",
    "DISPATCH__MIXING": "progress",
    "DISPATCH__MIXING_GROUPS": "3",
    "DISPATCH__MIXING_FLOOR": "0.1",
    "TASKS__ALFWORLD__HORIZONS": "[[0, 1]]",  # no errand is done in one turn
    "ALARMS__MIN_GROUPS": "2",
}


def test_a_task_that_learns_gets_more_groups_than_one_that_cannot(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    environment = {f"AGENTRL__{key}": value for key, value in SETTINGS.items()}
    environment["AGENTRL__RUN__HOME"] = str(home)
    config = str(ROOT / "configs" / "quickstart.toml")

    def logs() -> str:
        tails = [path.read_text()[-1500:] for path in sorted((home / "logs").glob("*.log"))]
        return "\n".join([log.read_text(), *tails])

    with agentrl("up", config, environment=environment, output=log) as process:
        eventually(lambda: process.poll() is not None, within_s=600, text=logs)
        assert process.returncode == 0, logs()

    store = open_store(f"sqlite:///{home / 'store.db'}")
    with store.read() as session:

        def ask(question: str) -> list[tuple[object, ...]]:
            return [tuple(row) for row in session.execute(text(question))]

        run = runs.require_run(session, "curriculum")
        assert progress.disagreements(session, run.run_id) == []
        assert ask("SELECT DISTINCT g.task, g.horizon FROM groups g ORDER BY g.task") == [
            ("alfworld", 1),
            ("dbbench", None),
        ]
        turns = "SELECT MAX(turns) FROM episodes WHERE state = 'finished' AND task = "
        assert ask(turns + "'alfworld'") == [(1,)]
        assert ask(turns + "'dbbench'")[0][0] > 1  # type: ignore[operator]
        told = "SELECT version, share FROM mixtures WHERE task = 'alfworld' ORDER BY number"
        shares = [share for _, share in ask(told)]
        assert shares[0] == pytest.approx(0.5)
        assert min(shares) == pytest.approx(0.1)  # 0.5 again where dbbench stood still by chance
        since = "(SELECT MIN(decided_at) FROM mixtures WHERE progress > 0)"
        groups = dict(
            ask(f"SELECT task, COUNT(*) FROM groups WHERE admitted_at >= {since} GROUP BY task")  # noqa: S608
        )
        assert groups["dbbench"] > groups.get("alfworld", 0)  # type: ignore[operator]
        assert ("alfworld", "zero_spread_share") in ask("SELECT task, name FROM raised_alarms")
    store.close()
    assert "alarm raised" in (home / "logs" / "trainer.log").read_text()
    status = [sys.executable, "-m", "cli.main", "status", config, "--json"]
    shown = subprocess.run(
        status, cwd=ROOT, env=os.environ | environment, capture_output=True, check=True, timeout=200
    )
    found = {(each["task"], each["name"]) for each in json.loads(shown.stdout)["alarms"]}
    assert ("alfworld", "zero_spread_share") in found
