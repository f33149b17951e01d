"""`make test-all` runs a test file again unless all its tests passed on this very tree."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent / "support"
PASSES = "def test_one() -> None: ...\ndef test_two() -> None: ...\n"
SKIPS = f"import pytest\n{PASSES}def test_three() -> None:\n    pytest.skip('no such card')\n"
FAILS = f"{PASSES}def test_three() -> None:\n    assert False\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one file of each kind."""
    for name, text in {"passes": PASSES, "skips": SKIPS, "fails": FAILS}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = oracles\n")
    (tmp_path / ".gitignore").write_text("__pycache__\n.stamps\n.pytest_cache\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".gitignore", "pytest.ini", "test_fails.py", "test_skips.py")
    git(tmp_path, "-c", "user.name=t", "-c", "user.email=t", "commit", "-qm", "begin")
    return tmp_path


def git(tree: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=tree, check=True)


def run(tree: Path, *arguments: str, marks: str = "not oracles") -> Sequence[str]:
    """Return the files of which tests ran."""
    command = [sys.executable, "-m", "pytest", "-p", "stamps", "--stamps", ".stamps", "-v"]
    done = subprocess.run(
        [*command, "-m", marks, *arguments],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
    )
    ran = {line.split("::")[0] for line in done.stdout.splitlines() if "::test_" in line}
    return sorted(each for each in ran if each.startswith("test_"))


def test_only_a_file_that_passed_whole_is_left_out(tree: Path) -> None:
    assert run(tree) == ["test_fails.py", "test_passes.py", "test_skips.py"]
    assert run(tree) == ["test_fails.py", "test_skips.py"]


@pytest.mark.parametrize("known", [False, True])
def test_an_edit_starts_anew(tree: Path, *, known: bool) -> None:
    if known:
        git(tree, "add", "test_passes.py")
    run(tree)
    (tree / "test_passes.py").write_text(PASSES + "# edited\n")
    assert "test_passes.py" in run(tree)


def test_a_part_of_a_file_does_not_stand_for_the_whole(tree: Path) -> None:
    run(tree, "-k", "one")
    run(tree, "test_passes.py::test_one")
    run(tree, marks="not slow")
    assert "test_passes.py" in run(tree)
