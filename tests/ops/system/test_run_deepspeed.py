"""A run whose trainer is two ranks: one is killed, all are told to end; it goes on by itself."""

import json
import os
import signal
from contextlib import closing, suppress
from pathlib import Path

import pytest
from backends import NEEDS_DEEPSPEED
from running import ROOT, agentrl, eventually, logs_of, processes_of, version_of
from sqlalchemy import text

from agentrl.core.types import RunState
from agentrl.db.queries import progress
from agentrl.db.registry import checkpoints
from agentrl.db.store import open_store
from agentrl.db.transitions import runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), NEEDS_DEEPSPEED]

UPDATES = 10  # of which the signal comes after the fourth or one soon after


def _environment(home: Path) -> dict[str, str]:
    return {
        "AGENTRL__RUN__HOME": str(home),
        "AGENTRL__RUN__NAME": "ranks",
        "AGENTRL__RUN__STOP_UPDATES": str(UPDATES),
        "AGENTRL__MODEL__PATH": str(ROOT / "models" / "tiny"),
        "AGENTRL__DISPATCH__GROUPS_PER_UPDATE": "4",
        "AGENTRL__WORKER__LEASE_S": "4.0",
        "AGENTRL__WORKER__BEAT_S": "1.0",
        "AGENTRL__TRAINER__ENGINE": "deepspeed",
        "AGENTRL__TRAINER__RANKS": "2",
        "AGENTRL__TRAINER__DEEPSPEED__ZERO": "3",
        "AGENTRL__TRAINER__DEEPSPEED__TIMEOUT_S": "20.0",
        "AGENTRL__TRAINER__SNAPSHOT_EVERY": "1",
    }


def _rank(home: Path, number: int) -> int:
    """The process of a rank."""
    for pid in processes_of(home):
        with suppress(OSError):  # one that ends meanwhile
            told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"RANK={number}".encode() in told:
                return pid
    raise AssertionError(f"no process of rank {number}")


def _snapshot(home: Path) -> int:
    """The version of the newest snapshot, which is written beside the next update."""
    with closing(open_store(f"sqlite:///{home / 'store.db'}")) as store, store.read() as session:
        run_id = runs.require_run(session, "ranks").run_id
        found = checkpoints.latest_snapshot(session, run_id)
        return found.version if found else 0


def test_a_run_of_two_ranks_survives_the_death_of_one_and_a_signal(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    config, environment = str(ROOT / "configs" / "quickstart.toml"), _environment(home)

    def logs() -> str:
        return logs_of(home, log)

    with agentrl("up", config, environment=environment, output=log) as process:
        eventually(lambda: version_of(home, "ranks") >= 2, within_s=300, text=logs)
        eventually(lambda: _snapshot(home) >= 2, within_s=300, text=logs)
        os.kill(_rank(home, 1), signal.SIGKILL)
        eventually(
            lambda: "rank 1 of 2 was killed by SIGKILL" in log.read_text(), within_s=120, text=logs
        )
        trainer = home / "logs" / "trainer.log"
        before = trainer.stat().st_size
        eventually(lambda: b"Update committed" in _after(trainer, before), within_s=300, text=logs)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, logs()
    assert processes_of(home) == []
    stopped_at = version_of(home, "ranks")

    with agentrl("up", config, environment=environment, output=log) as process:
        eventually(lambda: process.poll() is not None, within_s=450, text=logs)
        assert process.returncode == 0, logs()
    with closing(open_store(f"sqlite:///{home / 'store.db'}")) as store, store.read() as session:
        run = runs.require_run(session, "ranks")
        assert (run.state, run.version) == (RunState.COMPLETED, UPDATES)
        assert progress.disagreements(session, run.run_id) == []
        states = session.scalars(text("SELECT state FROM updates")).all()
        assert "skipped" not in states
    assert processes_of(home) == []
    beginnings = [line for line in trainer.read_text().splitlines() if "Trainer started" in line]
    versions = [json.loads(line)["version"] for line in beginnings]
    assert versions[:1] == [0]
    assert versions[1] >= 2  # the snapshot before the death, not the beginning
    assert versions[2] == stopped_at  # the one that the signal asked for


def _after(path: Path, size: int) -> bytes:
    return path.read_bytes()[size:]
