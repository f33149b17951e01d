"""Which checkpoints a simulated pool keeps."""

import shutil
from pathlib import Path

import pytest
from running import ROOT

from agentrl.checkpoints.manifest import SaveReport
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import Model
from agentrl.core.config.sections.tasks import Task
from agentrl.experiments.simulation.simulator import Simulator

TINY = ROOT / "models" / "tiny"


def save(directory: Path) -> SaveReport:
    shutil.copytree(TINY, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest*"))
    return SaveReport()


@pytest.mark.parametrize(
    ("tracks", "kept", "live"),
    [
        (["current"], [4], ["v4"]),
        # two versions ago: those between it and the newest are its next ones
        (["current", "lagged(2)"], [2, 3, 4], ["v4", "v2"]),
        (["current", "pinned(other)"], [4], ["v4", "other"]),
    ],
)
def test_versions_are_removed_once_no_track_can_want_them(
    tmp_path: Path, tracks: list[str], kept: list[int], live: list[str]
) -> None:
    config = Config(tasks={"dbbench": Task()}, model=Model(path=str(TINY)))
    pool = Simulator(config, {}, tmp_path, tracks, pinned={"other": TINY})
    for _ in range(4):
        pool.publish(save)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"v{version}" for version in kept]
    assert [policy.checkpoint_id for policy in pool.live()] == live
    assert TINY.exists()
