"""A run on the embedded default: ended, started again, a process killed; it goes on by itself."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from running import ROOT, agentrl, eventually, processes_of, version_of
from sqlalchemy import text

from core.types import RunState
from db import progress, runs
from db.store import open_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

UPDATES = 12  # of which one is stopped after and one bereaved after, each within a second


def _environment(home: Path) -> dict[str, str]:
    return {
        "AGENTRL__RUN__HOME": str(home),
        "AGENTRL__RUN__NAME": "embedded",
        "AGENTRL__RUN__STOP_UPDATES": str(UPDATES),
        "AGENTRL__MODEL__PATH": str(ROOT / "models" / "tiny"),
        "AGENTRL__DISPATCH__GROUPS_PER_UPDATE": "4",
        "AGENTRL__WORKER__LEASE_S": "4.0",
        "AGENTRL__WORKER__BEAT_S": "1.0",
    }


def test_a_run_that_is_stopped_and_bereaved_goes_on_to_its_end(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    environment = _environment(home)
    config = str(ROOT / "configs" / "quickstart.toml")

    def version() -> int:
        return version_of(home, "embedded")

    def logs() -> str:
        tails = [path.read_text()[-800:] for path in sorted((home / "logs").glob("*.log"))]
        return "\n".join([log.read_text(), *tails])

    with agentrl("up", config, environment=environment, output=log) as process:
        eventually(lambda: version() >= 1, within_s=240, text=logs)
        told = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, logs()
        assert time.monotonic() - told < 20, logs()  # 10 s, twice that on a busy machine
    assert processes_of(home) == []
    told_last = log.read_text().splitlines()[-1]
    assert "resume with: AGENTRL__DISPATCH__GROUPS_PER_UPDATE=4 " in told_last
    assert told_last.endswith(f" agentrl up {config}")

    stopped_at = version()
    with agentrl("up", config, environment=environment, output=log) as process:
        eventually(lambda: version() > stopped_at, within_s=240, text=logs)
        children = json.loads((home / "processes.json").read_text())["processes"]
        name = random.Random(7).choice(sorted(children))
        os.kill(children[name]["pid"], signal.SIGKILL)
        eventually(lambda: process.poll() is not None, within_s=360, text=logs)
        assert process.returncode == 0, logs()

    store = open_store(f"sqlite:///{home / 'store.db'}")
    with store.read() as session:
        run = runs.require_run(session, "embedded")
        assert run.state == RunState.COMPLETED
        assert run.version == UPDATES
        assert progress.disagreements(session, run.run_id) == []
        versions = session.scalars(
            text("SELECT version FROM updates WHERE state <> 'rolled_back' ORDER BY committed_at")
        ).all()
        assert versions == list(range(1, UPDATES + 1))
    store.close()
    assert processes_of(home) == []
