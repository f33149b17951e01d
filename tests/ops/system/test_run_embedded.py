"""A run on the embedded default: a process killed, all ended, all started again; it goes on."""

import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, agentrl, eventually, processes_of, version_of
from sqlalchemy import text

from agentrl.core.types import RunState
from agentrl.db.queries import progress
from agentrl.db.store import open_store
from agentrl.db.transitions import runs

pytestmark = pytest.mark.timeout(900)

NAME = "embedded"


def _environment(home: Path) -> dict[str, str]:
    return {
        "AGENTRL__RUN__HOME": str(home),
        "AGENTRL__RUN__NAME": NAME,
        "AGENTRL__RUN__STOP_UPDATES": "1000",
        "AGENTRL__MODEL__PATH": str(ROOT / "models" / "tiny"),
        "AGENTRL__DISPATCH__GROUPS_PER_UPDATE": "2",
        "AGENTRL__DISPATCH__GROUP_SIZE": "4",
        "AGENTRL__TASKS__ALFWORLD__WEIGHT": "0.2",  # of long episodes only some
        "AGENTRL__WORKER__LEASE_S": "4.0",
        "AGENTRL__WORKER__BEAT_S": "1.0",
    }


def test_a_run_that_is_bereaved_and_stopped_goes_on_to_its_end(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    environment = _environment(home)
    config = str(ROOT / "configs" / "quickstart.toml")

    def logs() -> str:
        tails = [path.read_text()[-800:] for path in sorted((home / "logs").glob("*.log"))]
        return "\n".join([log.read_text(), *tails])

    def worker() -> dict[str, Any]:
        children = json.loads((home / "processes.json").read_text())["processes"]
        return dict(children["worker-0"])

    with agentrl("up", config, environment=environment, output=log) as process:
        eventually(lambda: version_of(home, NAME) >= 1, within_s=240, text=logs)
        os.kill(worker()["pid"], signal.SIGKILL)  # its episodes are played again
        eventually(lambda: worker()["restarts"] == 1, within_s=120, text=logs)
        seen = version_of(home, NAME)
        eventually(lambda: version_of(home, NAME) > seen, within_s=240, text=logs)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, logs()
    assert processes_of(home) == []
    last = log.read_text().splitlines()[-1]
    assert "resume with: AGENTRL__DISPATCH__GROUPS_PER_UPDATE=2 " in last
    assert last.endswith(f" agentrl up {config}")

    updates = version_of(home, NAME) + 1
    environment["AGENTRL__RUN__STOP_UPDATES"] = str(updates)
    with agentrl("up", config, environment=environment, output=log) as process:
        eventually(lambda: process.poll() is not None, within_s=360, text=logs)
        assert process.returncode == 0, logs()

    with closing(open_store(f"sqlite:///{home / 'store.db'}")) as store, store.read() as session:
        run = runs.require_run(session, NAME)
        assert (run.state, run.version) == (RunState.COMPLETED, updates)
        assert progress.disagreements(session, run.run_id) == []
        versions = session.scalars(
            text("SELECT version FROM updates WHERE state <> 'rolled_back' ORDER BY committed_at")
        ).all()
        assert versions == list(range(1, updates + 1))
    assert processes_of(home) == []
