"""A run that trains an adapter, its checkpoints under a URL: served, measured, forked."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import torch
from running import ROOT, agentrl, eventually, logs_of, processes_of
from sqlalchemy import text

from agentrl.checkpoints import manifest
from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.types import RunState
from agentrl.db.queries import progress
from agentrl.db.registry import checkpoints
from agentrl.db.store import open_store
from agentrl.db.transitions import runs
from agentrl.ops.evaluation.command import EvalRequest, evaluate
from agentrl.ops.evaluation.target import resolve
from agentrl.ops.runs.export_checkpoint import export
from agentrl.ops.runs.lifecycle import RunPlace, delete, fork
from agentrl.serving.local.served_model import load_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(800)]

UPDATES = 12
CONFIG = ROOT / "configs" / "quickstart.toml"


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The configuration of a run that has trained to its end."""
    home, log = tmp_path / "home", tmp_path / "log"
    environment = {
        "AGENTRL__RUN__HOME": str(home),
        "AGENTRL__RUN__NAME": "lora",
        "AGENTRL__RUN__CHECKPOINTS": f"file://{tmp_path}/far",
        "AGENTRL__RUN__STOP_UPDATES": str(UPDATES),
        "AGENTRL__MODEL__PATH": str(ROOT / "models" / "tiny"),
        "AGENTRL__DISPATCH__GROUPS_PER_UPDATE": "4",
        "AGENTRL__TRAINER__LORA__RANK": "4",
        "AGENTRL__TRAINER__LEARNING_RATE": "3e-3",
        "AGENTRL__TRAINER__KEEP_CHECKPOINTS": "2",
        "AGENTRL__TRAINER__SNAPSHOT_EVERY": "2",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def logs() -> str:
        return logs_of(home, log)

    with agentrl("up", str(CONFIG), environment=environment, output=log) as process:
        eventually(lambda: process.poll() is not None, within_s=600, text=logs)
        assert process.returncode == 0, logs()
    assert processes_of(home) == []
    assert "cannot be served" not in logs()
    return config_loading.load(CONFIG)


def test_an_adapter_is_trained_served_measured_and_forked(
    trained: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_store(trained.store_url())) as store, store.read() as session:
        run = runs.require_run(session, "lora")
        assert (run.state, run.version) == (RunState.COMPLETED, UPDATES)
        assert progress.disagreements(session, run.run_id) == []
        assert not session.execute(text("SELECT * FROM unserved_steps")).all()
        lagged = text("SELECT MAX(version) FROM steps WHERE track = 'lagged(4)'")
        assert session.scalar(lagged) >= 1
        live = checkpoints.live_checkpoints(session, run.run_id)
        last = live[-1]
        assert last.path == f"{trained.run.checkpoints}/{run.run_id}/{last.checkpoint_id}"
        there = sorted(path.name for path in (tmp_path / "far" / run.run_id).iterdir())
        assert there == sorted(row.checkpoint_id for row in live)
        run_id = run.run_id
    adapter = resolve("lora@latest", trained).path
    size = sum(path.stat().st_size for path in adapter.glob("*.safetensors"))
    assert size < 0.1 * (ROOT / "models" / "tiny" / "model.safetensors").stat().st_size
    assert manifest.find_base(adapter) == trained.cache() / f"{run_id}-v000000"
    evaluate(CONFIG, EvalRequest(policies=("lora@latest",), items=2), as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [(row["version"], row["episodes"]) for row in rows] == [(UPDATES, 2)] * 2
    _check_merged(trained, adapter, tmp_path)


def _check_merged(config: Config, adapter: Path, out: Path) -> None:
    """Exported or forked, the adapter is folded into a whole model that says the same."""
    probe = manifest.read(adapter).probe
    assert probe is not None
    export("lora@latest", out / "merged", CONFIG, merge_lora=True)
    where = RunPlace(config.store_url(), "lora")
    child = fork(where, "latest", "child")
    forked = config.cache() / f"{child}-v000000"
    for path in (out / "merged", forked):
        found = load_model(path, "cpu", torch.float32).score(probe.token_ids)
        assert max(abs(a - b) for a, b in zip(found, probe.logprobs, strict=True)) < 1e-4
        assert manifest.find_base(path) is None
    assert manifest.verify(forked).version == 0
    assert manifest.verify(forked).parent == adapter.name
    assert (out / "far" / child / forked.name / manifest.FILE).exists()
    delete(RunPlace(config.store_url(), "child"))
    assert not (out / "far" / child / forked.name).exists()
    assert not forked.exists()
