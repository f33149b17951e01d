"""The limits of tokens of the configuration, in a warm start."""

import re
from pathlib import Path

import pytest
from running import ROOT
from typer.testing import CliRunner

from agentrl.cli.main import app

FILE = """
[model]
path = "models/tiny"
[tasks.dbbench.options]
style = "compact"
difficulty = "easy"
items = 20
test_items = 8
[sampling]
max_step_tokens = {step}
max_tokens = {whole}
"""


def pass_at_8(folder: Path, step: int, whole: int) -> float:
    """Measure models/tiny after one gentle step, under these limits."""
    file = folder / f"{step}-{whole}.toml"
    file.write_text(FILE.format(step=step, whole=whole))
    phase = ["--phase", "1:0::1e-9", "--episodes", "4", "--measured", "8"]
    model, out = ROOT / "models" / "tiny", folder / f"{step}-{whole}"
    command = ["warmstart", str(file), "--model", str(model), "--out", str(out), *phase]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, ended.output
    found = re.search(r"dbbench +\S+% +(\S+)% ", ended.stdout)
    assert found, ended.stdout
    return float(found[1])


@pytest.mark.slow
def test_success_is_measured_under_the_limits_of_the_configuration(tmp_path: Path) -> None:
    assert pass_at_8(tmp_path, 64, 1024) > 0
    assert pass_at_8(tmp_path, 4, 1024) == 0
    assert pass_at_8(tmp_path, 64, 30) == 0
