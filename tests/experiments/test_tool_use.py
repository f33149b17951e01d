from pathlib import Path

import pytest
from experiment_config import configuration

from agentrl.core import config_loading
from agentrl.core.errors import ConfigError
from agentrl.envs import registry
from agentrl.experiments.findings import Check, Design, Point, Skill, Training, keep, read
from agentrl.experiments.tool_use import report, study
from agentrl.experiments.tool_use.report import ARMS
from agentrl.experiments.tool_use.study import ToolUseRequest

pytestmark = pytest.mark.usefixtures("signals")
ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "experiments" / "configs" / "tool-use.toml"
SUMS = """
[tasks.maths.options]
style = "compact"
difficulty = "easy"
items = 8
test_items = 4
"""
DESIGN = Design(
    *(100, 0, 2, 4, 1, 2, 4),
    {
        "tasks": {"maths": {"weight": 1.0, "options": {"style": "compact"}}},
        "model": {"path": "models/tiny-maths"},
        "dispatch": {"groups_per_update": 2, "group_size": 4},
        "sampling": {"temperature": 1.0},
    },
)


def training(arm: str, seed: int, solved: int, used: float) -> Training:
    """Two items, four attempts each, of which `solved` of the first."""
    points = [Point(3, 110, {}, {}, {}, {}, {}, {})] if ARMS[arm].trained else []
    checks = [Check(tokens, 0, {"maths": 0.25}) for tokens in (0, 110)]
    skills = [Skill("policy", "maths", [solved, 0], [1, 1], {"tool_used": used})]
    return Training(DESIGN, arm, seed, 1.0, 16, points, checks, skills, {})


def test_a_trained_arm_is_compared_with_itself_before_training(tmp_path: Path) -> None:
    out = tmp_path / "found"
    out.mkdir()
    measured = {
        "start": (1, 0.25),
        "tool": (4, 0.75),
        "start-without": (1, 0.0),
        "without": (2, 0.0),
    }
    for seed in range(3):
        for arm, (solved, used) in measured.items():
            keep(out, training(arm, seed, solved, used))
    page = report.write(out).read_text()
    assert "- **maths, tool** against `start`: final +0.375" in page
    assert "tool used +0.500 (+0.500 … +0.500)." in page
    assert "- **maths, without** against `start-without`: final +0.125" in page
    assert "| tool | 0.500 (0.50 – 0.50) | +0.375 (+0.375 … +0.375) | 0.750" in page
    assert "Trainings: start 3; tool 3; start-without 3; without 3." in page


def test_arms_differ_in_the_tool_alone() -> None:
    config = config_loading.load(CONFIG)
    for name, arm in ARMS.items():
        made = study.arm_config(config, name)
        source = registry.source("maths", made.tasks["maths"].options)
        item = source.items("test")[0]
        tools = [tool.name for tool in source.make(item).tools]
        assert ("python" in tools) == arm.tool
        assert source.items("test") == registry.source("maths", {}).items("test")
        assert ARMS[arm.base].tool == arm.tool
        assert not ARMS[arm.base].trained


def test_a_missing_starting_policy_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.read_text().replace("models/tiny-maths", f"{tmp_path}/none"))
    with pytest.raises(ConfigError, match=r"none does not exist.*") as caught:
        study.study(ToolUseRequest(tmp_path / "out", path))
    assert "the command that stands in the configuration" in str(caught.value.hint)


@pytest.mark.slow
def test_a_study_measures_both_arms_before_and_after_training(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(configuration(SUMS).replace("tiny-kg", "tiny"))
    request = study.quick(ToolUseRequest(tmp_path / "out", path, tokens=300))
    page = study.study(request).read_text()
    found = {each.arm: each for each in read(tmp_path / "out", "training", Training)}
    assert set(found) == set(ARMS)
    assert not found["start"].points
    assert found["tool"].points
    assert {len(each.skills[0].solved) for each in found.values()} == {2}
    assert "one seed shows nothing" in page
