"""The task that docs/environments.md teaches, played the ways a user would."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.envs import registry
from agentrl.envs.contract import Outcome
from agentrl.envs.play import play
from agentrl.envs.server.client import RemoteSource
from agentrl.envs.server.server import EnvServer

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "guess.py"
SIZES = ("easy", "medium", "hard")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the example as pip leaves a distribution with that entry point."""
    (tmp_path / "guess.py").write_text(EXAMPLE.read_text("utf-8"), "utf-8")
    metadata = tmp_path / "guess-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: guess\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[agentrl.tasks]\nguess = guess:GuessSource\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "guess", raising=False)
    return tmp_path


def agentrl(installed: Path, *arguments: str, typed: str = "") -> tuple[int, str]:
    """Exit code and standard output of a command of someone who installed it."""
    ended = subprocess.run(
        [sys.executable, "-m", "agentrl.cli.main", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{installed}{os.pathsep}{os.environ['PYTHONPATH']}"},
        input=typed,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert not ended.stderr
    return ended.returncode, ended.stdout


@pytest.mark.parametrize("size", SIZES)
def test_its_expert_wins_in_the_process(installed: Path, size: str) -> None:
    source = registry.source("guess", {"difficulty": size, "items": 200})
    outcomes = [play(source, item, source.expert(item, seed=0)) for item in source.items("train")]
    assert [outcome.reward for outcome in outcomes] == [1.0] * 200


def test_its_expert_wins_through_the_env_server(installed: Path) -> None:
    options = {"items": 3, "difficulty": "hard"}
    server = EnvServer({"guess": Task(options=options)})
    try:
        far = RemoteSource(Envs(url=server.url), "guess", options)
        for item in far.items("train"):
            assert play(far, item, far.expert(item, seed=0)) == Outcome((), True, reward=1, score=1)
    finally:
        server.close()


def test_it_is_listed_and_measured_by_the_verbs(installed: Path) -> None:
    code, listed = agentrl(installed, "envs", "list")
    assert code == 0
    assert any(line.split()[0] == "guess" for line in listed.splitlines())
    code, table = agentrl(installed, "envs", "check", "guess", "--limit", "20")
    assert code == 0
    assert table.count("100.0% (20/20)") == 3


def test_a_person_plays_it(installed: Path) -> None:
    code, told = agentrl(installed, "envs", "play", "guess", typed=":expert\n" * 5)
    assert code == 0
    assert "completed: reward 1, score 1 after " in told


def test_the_documentation_names_it_and_says_how_short_it_is() -> None:
    page = (ROOT / "docs" / "environments.md").read_text("utf-8")
    assert "[examples/guess.py](examples/guess.py)" in page
    assert len(EXAMPLE.read_text("utf-8").splitlines()) < 60
    assert "in under 60 lines" in page
