"""What is measured of the task, on a release of our own games."""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs.contract import Outcome
from agentrl.envs.tasks.alfworld import check
from agentrl.envs.tasks.alfworld.source import AlfworldSource
from agentrl.envs.tasks.alfworld.textworld_comparison import TextWorld
from agentrl.envs.tasks.check import Figure, Settings


@pytest.fixture
def figures(folder: Path) -> Any:
    """The figures of the small release, by name, after a short warm-up."""

    def measured(**peers: str) -> dict[str, Figure]:
        settings = Settings(data=str(folder), limit=10, peers=peers)
        return {figure.name: figure for figure in check.figures(settings, warm_up=10)}

    return measured


def test_the_figures_of_a_sound_release_are_as_wanted(figures: Any) -> None:
    found = figures()
    assert found["games of AgentBench's list that are here"].value == "1 of 2"
    for part in ("train", "valid_train", "valid_seen"):
        figure = found[f"walkthroughs that win, {part}"]
        assert (figure.value, figure.ok) == ("1/1", True)
    assert found["memory over 10 episodes"].value.endswith("MiB")


def test_a_walkthrough_that_does_not_win_is_named(figures: Any, folder: Path, made: Any) -> None:
    games = folder / "alfworld/json_2.1.1"
    lost = made(walkthrough=["flip lamp 1"])
    (games / "train/a/game.tw-pddl").write_text(json.dumps(lost))
    wrong = made(walkthrough=["fly"])
    (games / "valid_seen/c/game.tw-pddl").write_text(json.dumps(wrong))
    found = figures()
    train, seen = (found[f"walkthroughs that win, {part}"] for part in ("train", "valid_seen"))
    assert (train.ok, seen.ok) == (False, False)
    assert train.value == "0/1; json_2.1.1/train/a/game.tw-pddl: not won"
    assert seen.value.endswith("fly cannot be done")


@pytest.mark.parametrize(
    ("python", "why"),
    [("", "no peer"), ("/nowhere/python", "/nowhere/python"), (sys.executable, "ended")],
)
def test_without_textworld_the_comparison_says_why(figures: Any, python: str, why: str) -> None:
    found = figures(textworld=python)
    figure = found["walks of 30 steps that equal TextWorld's"]
    assert figure.ok is None
    assert why in figure.value or "pipe" in figure.value
    assert found["TextWorld's median step over ours"].ok is None


def peer(tmp_path: Path, script: str) -> str:
    """What stands where a Python with TextWorld should."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return str(python)


def test_a_peer_that_is_no_textworld_is_given_up(figures: Any, tmp_path: Path) -> None:
    found = figures(textworld=peer(tmp_path, "read line; echo hello"))
    figure = found["walks of 30 steps that equal TextWorld's"]
    assert (figure.ok, "answered 'hello" in figure.value) == (None, True)


def test_a_peer_that_is_silent_is_given_up(tmp_path: Path) -> None:
    silent = TextWorld(peer(tmp_path, "exec sleep 60"), patience_s=0.1)
    with closing(silent), pytest.raises(OSError, match=r"did not answer in 0\.1 s"):
        silent.ask(do="look")


def test_no_games_are_no_games_won(figures: Any, folder: Path) -> None:
    games = folder / "alfworld/json_2.1.1"
    (games / "valid_seen/c/game.tw-pddl").unlink()
    assert figures()["walkthroughs that win, valid_seen"].ok is None
    for path in games.rglob("game.tw-pddl"):
        path.unlink()
    assert [figure.ok for figure in figures().values()] == [None]


def test_without_data_one_figure_says_so(tmp_path: Path) -> None:
    (figure,) = check.figures(Settings(data=str(tmp_path)))
    assert (figure.ok, "json_2.1.1" in figure.value) == (None, True)


@pytest.mark.parametrize("origin", ["generated", "agentbench"])
def test_baselines_play_and_differ(folder: Path, origin: str) -> None:
    source = AlfworldSource({"origin": origin, "data": str(folder), "items": 1})
    (item,) = source.items("train")
    told: dict[str, list[str]] = {}
    for name, policy in check.baselines(item, 0).items():
        environment = source.make(item)
        outcome = Outcome(environment.start().messages)
        told[name] = []
        while not outcome.done and len(told[name]) < 6:
            outcome = environment.call([policy.act(outcome.messages)])
            told[name] += [message.content for message in outcome.messages]
    assert not any("Nothing happen" in text for texts in told.values() for text in texts)
    assert len(told["constant"]) == 2
    assert len(told["random"]) > 2
