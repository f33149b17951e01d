from pathlib import Path

import pytest
from warm_starts import TASKS, options

from agentrl.ops.warmstart.cloning_trainer import Progress
from agentrl.ops.warmstart.warmstart import warmstart


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Progress]]:
    out = tmp_path_factory.mktemp("models") / "tiny"
    seen: list[Progress] = []
    report = warmstart(options(out), seen.append)
    assert report.out == out
    assert report.steps == 2 + 3
    assert set(report.skills) == set(TASKS)
    return out, seen
