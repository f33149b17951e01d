"""benchmarks/gpu.sh, rehearsed on the CPU as its head says."""

import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks/gpu.sh"
PARTS = {
    1: ["make", "kernels", "train", "train", "train", "probe", "mismatch"],
    2: ["make", "serve", "swap", "overlap", "overlap"],
}

PLANNED = {"train", "serve", "swap", "overlap"}


def documented(part: int) -> list[str]:
    """Return the command of a rehearsal, from the head of the script."""
    lines = [line.lstrip("# ") for line in SCRIPT.read_text().splitlines()]
    [command] = [
        line for line in lines if line.startswith(f"benchmarks/gpu.sh {part} --device cpu")
    ]
    return shlex.split(command)


def numbers(figures: Any) -> list[float]:
    """Return all numbers of a line, also those of nested figures."""
    if isinstance(figures, dict):
        return [number for value in figures.values() for number in numbers(value)]
    return [figures] if isinstance(figures, int | float) else []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", PARTS)
def test_a_rehearsal_prints_the_figures_and_the_bounds_of_each_command(
    part: int, tmp_path: Path
) -> None:
    own = {"PYTHON": sys.executable, "MODEL_DIR": str(tmp_path / "model")}
    run = subprocess.run(
        documented(part),
        cwd=ROOT,
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [line["command"] for line in lines] == PARTS[part]
    for line in lines:
        assert (line["model"], line["device"]) == ("tiny", "cpu")
        assert all(math.isfinite(number) for number in numbers(line))
        bound = line.get("ceiling", line.get("tolerance"))
        assert (line["command"] == "kernels") or min(numbers(bound)) > 0
        assert ("plan_bytes" in line) == (line["command"] in PLANNED)
        assert min(numbers(line.get("plan_bytes", 1))) > 0
        if line["command"] == "swap":
            assert line["plan_bytes"]["lora"] < line["plan_bytes"]["full"]
