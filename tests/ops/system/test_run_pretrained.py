"""A run that trains an adapter of SmolLM2; its trainer is killed and goes on."""

import json
import os
import signal
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from running import ROOT, agentrl, eventually, logs_of, processes_of, version_of
from sqlalchemy import text
from torch_device import DEVICE

from agentrl.checkpoints import manifest
from agentrl.core import config_loading
from agentrl.core.types import RunState
from agentrl.db.queries import progress
from agentrl.db.store import open_store
from agentrl.db.transitions import runs
from agentrl.ops.evaluation.target import resolve
from agentrl.ops.runs.export_checkpoint import export
from agentrl.serving.checkpoint_loader import median_gap, tolerance
from agentrl.trainer.model.bfloat16_cost import is_bfloat16_emulated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

UPDATES = 3
CONFIG = ROOT / "configs" / "smollm.toml"
DTYPE = "float32" if is_bfloat16_emulated(DEVICE) else "bfloat16"


def _environment(home: Path, smollm2: Path) -> dict[str, str]:
    """Two groups of three short episodes an update, whose rewards always differ."""
    chosen = {
        "RUN__HOME": str(home),
        "RUN__STOP_UPDATES": str(UPDATES),
        "MODEL__PATH": str(smollm2),
        "MODEL__DTYPE": json.dumps(DTYPE),
        "TASKS__DBBENCH__JUDGE__FUNCTION": f"{ROOT}/tests/support/vowel_judge.py:judge",
        "TASKS__ALFWORLD__JUDGE__FUNCTION": f"{ROOT}/tests/support/vowel_judge.py:judge",
        "DISPATCH__GROUPS_PER_UPDATE": "2",
        "DISPATCH__GROUP_SIZE": "3",
        "SAMPLING__MAX_STEP_TOKENS": "12",
        "SAMPLING__MAX_TOKENS": "512",
        "WORKER__CONCURRENCY": "6",
        "TRAINER__LORA__RANK": "4",
        "TRAINER__LEARNING_RATE": "1e-4",
        "TRAINER__OPTIMIZER_STEPS": "1",
        "TRAINER__SNAPSHOT_EVERY": "1",
        "TRAINER__THREADS": "1",
    }
    return {f"AGENTRL__{key}": value for key, value in chosen.items()}


def _trainer(home: Path) -> int:
    for pid in processes_of(home):
        with suppress(OSError):  # one that ends meanwhile
            if b"\0trainer\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise AssertionError("no process of the trainer")


@pytest.fixture
def home(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that has trained to its end; its trainer was killed on the way."""
    found, log = tmp_path / "home", tmp_path / "log"
    environment = _environment(found, smollm2)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def logs() -> str:
        return logs_of(found, log)

    with agentrl("up", str(CONFIG), environment=environment, output=log) as process:
        eventually(lambda: version_of(found, "smollm") >= 1, within_s=600, text=logs)
        os.kill(_trainer(found), signal.SIGKILL)
        eventually(lambda: process.poll() is not None, within_s=900, text=logs)
        assert process.returncode == 0, logs()
    assert processes_of(found) == []
    started = (found / "logs" / "trainer.log").read_text().count("Trainer started")
    assert started == 2
    return found


def test_a_real_model_is_trained_although_its_trainer_is_killed(home: Path, tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{home / 'store.db'}")) as store, store.read() as session:
        run = runs.require_run(session, "smollm")
        assert (run.state, run.version) == (RunState.COMPLETED, UPDATES)
        assert progress.disagreements(session, run.run_id) == []
        found = session.scalars(text("SELECT metrics FROM updates WHERE state = 'committed'"))
        updates: list[dict[str, Any]] = [json.loads(metrics) for metrics in found]
    assert len(updates) == UPDATES
    for metrics in updates:
        assert metrics["mismatch_k3"] < 0.01  # of the engine's log-probabilities
        assert metrics["effective_sample_size"] > 0.9
    _check_export(tmp_path / "plain")


def _check_export(out: Path) -> None:
    """In plain transformers the last checkpoint says what it said in the trainer."""
    probe = manifest.read(resolve("smollm@latest", config_loading.load(CONFIG)).path).probe
    assert probe is not None
    export("smollm@latest", out, CONFIG, merge_lora=True)
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(out, dtype=getattr(torch, DTYPE))
    with torch.no_grad():
        logits = model(torch.tensor([probe.token_ids])).logits[0, :-1].float()
    targets = torch.tensor(probe.token_ids[1:])[:, None]
    said = logits.log_softmax(-1).gather(1, targets)[:, 0].tolist()
    assert median_gap(said, probe.logprobs) < tolerance(DTYPE)
