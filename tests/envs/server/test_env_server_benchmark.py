"""What benchmarks/env_server.py measures of memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def measured(*arguments: str) -> Any:
    command = [sys.executable, ROOT / "benchmarks/env_server.py", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_stays_over_two_thousand_sessions() -> None:
    assert measured("--memory", "--sessions", "2000")["growth"] < 0.05
