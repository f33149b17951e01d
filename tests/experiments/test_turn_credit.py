from pathlib import Path

import pytest
from experiment_config import configuration

from agentrl.core import config_loading
from agentrl.core.errors import ConfigError
from agentrl.experiments.findings import Check, Design, Point, Skill, Training, keep, read
from agentrl.experiments.turn_credit import report, study
from agentrl.experiments.turn_credit.report import ARMS
from agentrl.experiments.turn_credit.study import TurnCreditRequest
from agentrl.trainer.algorithm.presets import resolve_settings

pytestmark = pytest.mark.usefixtures("signals")
ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "experiments" / "configs" / "turn-credit.toml"
ERRANDS = """
[tasks.alfworld]
max_turns = 6

[tasks.alfworld.options]
style = "compact"
difficulty = "easy"
items = 8
test_items = 4
"""
DESIGN = Design(
    *(100, 0, 2, 4, 1, 2, 4),
    {
        "tasks": {"alfworld": {"weight": 1.0, "max_turns": 20, "options": {"style": "compact"}}},
        "model": {"path": "models/tiny"},
        "dispatch": {"groups_per_update": 2, "group_size": 4},
        "sampling": {"temperature": 1.0},
    },
)


def training(arm: str, seed: int, solved: int) -> Training:
    """Two items, four attempts each, of which `solved` of the first."""
    points = [Point(3, 110, {}, {}, {}, {}, {}, {})]
    checks = [Check(0, 0, {"alfworld": 0.25}), Check(110, 3, {"alfworld": 0.125 * solved})]
    skills = [Skill("policy", "alfworld", [solved, 0], [1, 1])]
    return Training(DESIGN, arm, seed, 1.0, 16, points, checks, skills, {})


def test_an_arm_is_compared_with_the_one_that_differs_in_its_credit(tmp_path: Path) -> None:
    out = tmp_path / "found"
    out.mkdir()
    for seed in range(3):
        for arm, solved in {"outcome": 1, "outcome-progress": 2, "turn-progress": 4}.items():
            keep(out, training(arm, seed, solved))
    page = report.write(out).read_text()
    assert "- **alfworld, outcome-progress** against `outcome`: final +0.125" in page
    assert "- **alfworld, turn-progress** against `outcome-progress`: final +0.250" in page
    assert "| outcome | 0.125 (0.12 – 0.12) | – | 0.125 (0.12 – 0.12) | 3 ± 0 |" in page
    assert "Trainings: outcome 3; outcome-progress 3; turn-progress 3." in page
    assert "](found/learning.svg)" in page


def test_arms_differ_in_credit_and_progress_alone() -> None:
    config = config_loading.load(CONFIG)
    for name, arm in ARMS.items():
        made = study.arm_config(config, name)
        assert resolve_settings(made.trainer).credit == arm.credit
        assert made.tasks["alfworld"].process_rewards.progress == arm.progress
        assert arm.base in ARMS


def test_an_arm_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown arm gigpoo.*gigpo"):
        study.study(TurnCreditRequest(tmp_path, CONFIG, arms=("gigpoo",)))


@pytest.mark.slow
def test_a_study_trains_each_arm_on_the_same_episodes(tmp_path: Path) -> None:
    model = ROOT / "models" / "tiny"
    path = tmp_path / "config.toml"
    path.write_text(configuration(ERRANDS).replace("tiny-kg", model.name))
    request = study.quick(TurnCreditRequest(tmp_path / "out", path, tokens=300))
    page = study.study(request).read_text()
    found = {each.arm: each for each in read(tmp_path / "out", "training", Training)}
    first = {found[arm].points[0].tokens for arm in ARMS}
    assert len(first) == 1, "the first round is played by the same policy"
    assert "one seed shows nothing" in page
