"""docs/tutorial.md, block by block, as a reader would who copies it."""

import os
import re
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([\w.]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OFFLINE = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}


def _environment(folder: Path) -> dict[str, str]:
    """An environment of its own, into which a package can be installed, with all that is here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    here = [str(ROOT / "src"), *site.getsitepackages()]
    (packages / "here.pth").write_text("\n".join(here) + "\n")
    for name, module in (("agentrl", "agentrl.cli.main"), ("pip", "pip")):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -m {module} "$@"\n')
        script.chmod(0o755)
    path = f"{folder}/bin:{os.environ['PATH']}"
    own = {"PATH": path, **OFFLINE}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return inherited | own


@pytest.mark.slow
def test_every_block_of_the_tutorial_does_what_the_page_says(tmp_path: Path) -> None:
    environment = _environment(tmp_path / "env")
    work = tmp_path / "brisk"
    work.mkdir()
    said = []
    for kind, name, text in BLOCK.findall(PAGE.read_text()):
        if name:
            (work / name).write_text(text)
            continue
        assert kind == "sh"
        command = ["bash", "-e", "-o", "pipefail", "-c", text]
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (text, done.stdout[-2000:], done.stderr[-2000:])
        said.append(done.stdout)
    assert len(said) == 4
    installed, _, asked, exported = said
    assert re.search(r"^brisk ", installed, re.MULTILINE)
    assert re.search(r"^brisk +completed \(2 updates\)", asked, re.MULTILINE), asked
    solved = re.findall(r"^(\d+) +\d+ +(0\.\d+)", asked, re.MULTILINE)
    assert solved
    assert all(float(reward) == pytest.approx(1 - int(turns) / 20) for turns, reward in solved)
    assert asked.rstrip().endswith("(0 rows)")
    assert "trained" in exported
    assert (work / "trained" / "model.safetensors").is_file()
