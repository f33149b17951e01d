"""The limits of tokens of the configuration, in a warm start."""

import re
from pathlib import Path

import numpy as np
import pytest
from running import ROOT
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.core.config.sections.episodes import Sampling
from agentrl.ops.warmstart.token_limits import learned_length, limit_warnings, turn_lengths
from agentrl.trainer.model.cloning import Demonstration

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


def demonstration(*mask: int) -> Demonstration:
    return Demonstration(np.zeros(len(mask), np.int32), np.array(mask, np.uint8))


def test_turns_are_measured_one_by_one_and_what_follows_the_last_does_not_count() -> None:
    mask = demonstration(0, 0, 1, 1, 1, 0, 1, 0, 0).mask
    assert turn_lengths(mask).tolist() == [3, 1]
    assert learned_length(mask) == 7
    assert turn_lengths(demonstration(1, 0, 1, 1).mask).tolist() == [1, 2]


def test_demonstrations_that_a_run_cuts_off_are_counted_for_each_task_and_limit() -> None:
    short, long = demonstration(0, 1, 1, 0), demonstration(0, 1, 1, 1, 0, 1)
    phases = [{"a": [short], "b": [short]}, {"a": [short, long, short], "b": [short]}]
    assert list(limit_warnings(phases, Sampling(max_step_tokens=2, max_tokens=5))) == [
        "a: 25.0% of the demonstrations have a turn of more than 2 tokens, "
        "which sampling.max_step_tokens cuts off; the longest has 3",
        "a: 25.0% of the demonstrations have more than 5 tokens, "
        "which sampling.max_tokens cuts off; the longest has 6",
    ]
    assert not list(limit_warnings(phases, Sampling(max_step_tokens=3, max_tokens=6)))
    (imported,) = limit_warnings([{"": [long]}], Sampling(max_step_tokens=2))
    assert imported.startswith("imported episodes: 100.0% of the demonstrations have a turn of")


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
    too_long = "sampling.max_step_tokens cuts off" in ended.stderr
    assert too_long == (step < 64), ended.stderr
    return float(found[1])


@pytest.mark.slow
def test_success_is_measured_under_the_limits_of_the_configuration(tmp_path: Path) -> None:
    assert pass_at_8(tmp_path, 64, 1024) > 0
    assert pass_at_8(tmp_path, 4, 1024) == 0
    assert pass_at_8(tmp_path, 64, 30) == 0
