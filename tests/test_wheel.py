"""The wheel, installed in a project that has folders of the same names."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from running import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
MODELS = ("models/tiny", "models/tiny-careless")
SHIPPED = [folder for folder in FOLDERS if folder != "experiments"]
THEIRS = ("cli", "core", "db", "envs", "workers")
PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "theirs"
version = "1"
[project.entry-points."agentrl.tasks"]
brisk = "envs.brisk:BriskSource"
[tool.setuptools]
packages = ["cli", "core", "db", "envs", "workers"]
"""
TASK = """
from agentrl.envs.tasks.alfworld.task_source import AlfworldSource
from core import OWNER

class BriskSource(AlfworldSource):
    name = "brisk"
    owner = OWNER
"""


class Installed:
    """An environment of its own with the wheel, and a project that is installed in it."""

    def __init__(self, folder: Path) -> None:
        self.environment, self.project = folder / "env", folder / "theirs"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(self.environment)], check=True
        )
        (packages,) = (self.environment / "lib").glob("python*/site-packages")
        here = [path for path in sys.path if Path(path).name == "site-packages"]
        (packages / "here.pth").write_text("\n".join(here) + "\n")

    def run(self, *command: str, code: int = 0) -> str:
        """What a command of this environment prints, started in the project's folder."""
        own = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        program = str(self.environment / "bin" / command[0])
        done = subprocess.run(
            [program, *command[1:]],
            cwd=self.project,
            env=kept | own,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stderr if code else done.stdout


def built(folder: Path) -> Path:
    """A wheel of this tree, made of a copy: building leaves files behind."""
    for name in (*FOLDERS, "configs", *MODELS, "src"):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, folder / "tree" / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "tree" / name)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(folder / "dist")]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(folder / "tree")]
    subprocess.run(command, check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("build"))


@pytest.fixture
def installed(tmp_path: Path, wheel: Path) -> Installed:
    installed = Installed(tmp_path)
    for name in THEIRS:
        (installed.project / name).mkdir(parents=True)
        (installed.project / name / "__init__.py").write_text(f"OWNER = 'their {name}'\n")
    (installed.project / "envs" / "brisk.py").write_text(TASK)
    (installed.project / "pyproject.toml").write_text(PROJECT)
    installed.run("python", "-m", "pip", "install", "-q", str(wheel))
    installed.run("python", "-m", "pip", "install", "-q", ".")
    return installed


def shipped(parts: Sequence[str]) -> list[str]:
    """Paths of the wheel that git tracks, of folders that are packages."""
    command = ["git", "ls-files", "--", *(f"{part}/" for part in parts)]
    return subprocess.check_output(command, cwd=ROOT, text=True).split()


def test_the_wheel_holds_one_package_and_every_file_of_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"agentrl"}
    data = [name for name in shipped(["configs", *MODELS]) if not name.endswith(".md")]
    assert {f"agentrl/{name}" for name in (*shipped(SHIPPED), *data)} <= names
    assert not [name for name in names if name.startswith("agentrl/experiments")]
    studies = {Path(name).name for name in shipped(["experiments"]) if name.endswith(".toml")}
    assert studies
    assert not studies & {Path(name).name for name in names}, "a study's configuration is shipped"


def test_their_own_folders_and_ours_live_side_by_side(installed: Installed) -> None:
    said = installed.run("python", "-c", "import core, agentrl.core as ours; print(core.OWNER)")
    assert said == "their core\n"
    assert "brisk" in installed.run("agentrl", "envs", "list")
    shown = installed.run("agentrl", "envs", "show", "brisk", "-o", "items=8")
    assert "── tool take_action" in shown
    absent = installed.run("agentrl", "experiment", "staleness", "--out", "x", code=2)
    assert "the installed package has no experiments" in absent
    line = installed.run("agentrl", "quickstart", "--fast", "--updates", "1", "--json")
    assert json.loads(line.splitlines()[-1])["updates"] == 1
