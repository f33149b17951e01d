import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = (
    "quickstart.lock",
    "dev.lock",
    "bfcl.lock",
    "openenv.lock",
    "reasoning-gym.lock",
    "verifiers.lock",
)


def names(lines: list[str]) -> set[str]:
    found = (re.match(r"[A-Za-z0-9._-]+", line) for line in lines)
    return {re.sub(r"[-_.]+", "-", match.group()).lower() for match in found if match}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_versions_and_names_no_host_and_no_gpu_library(lock: str) -> None:
    lines = (ROOT / "requirements" / lock).read_text().splitlines()
    assert lines
    for line in lines:
        assert re.match(r"[a-z0-9._-]+==[^ ]+( ; .+)?$", line), line
    assert not {n for n in names(lines) if n.startswith(("nvidia", "cuda", "triton", "torch"))}


def test_what_pyproject_asks_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = list(project["project"]["dependencies"]) + project["dependency-groups"]["dev"]
    for extra in project["project"]["optional-dependencies"].values():
        asked += extra
    locked = [(ROOT / "requirements" / lock).read_text() for lock in (*LOCKS, "torch.lock")]
    assert names(asked) <= names("\n".join(locked).splitlines())
