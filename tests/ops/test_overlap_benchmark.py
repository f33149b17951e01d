"""What benchmarks/overlap.py measures: the whole system, with sleeps for its arithmetic."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_generation_overlaps_training_end_to_end() -> None:
    script = ROOT / "benchmarks/overlap.py"
    command = [sys.executable, str(script), "--json", "--updates", "3", "--token-s", "0.001"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["generation_s"] == pytest.approx(found["training_s"], rel=0.1)
    assert found["sync_s"] > found["generation_s"] + found["training_s"] - 1.0
    assert found["async_s"] < 0.8 * found["sync_s"]
    assert found["sync_stale"] == 0
