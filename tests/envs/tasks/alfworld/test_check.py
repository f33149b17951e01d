"""The baselines of the task, and a TextWorld to compare with that is none."""

from contextlib import closing
from pathlib import Path

import pytest
from textworld_comparison import TextWorld

from agentrl.envs.contract import Outcome
from agentrl.envs.tasks.alfworld import check
from agentrl.envs.tasks.alfworld.task_source import AlfworldSource


def peer(tmp_path: Path, script: str) -> str:
    """What stands where a Python with TextWorld should."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exec sleep 60", r"did not answer in 0\.1 s"),
        ("read line; echo hello; exec sleep 60", "answered 'hello"),
        ("exit 1", "ended|pipe"),
    ],
)
def test_a_peer_that_is_no_textworld_is_given_up(tmp_path: Path, script: str, why: str) -> None:
    patience_s = 0.1 if "0\\.1" in why else 60.0
    other = TextWorld(peer(tmp_path, script), patience_s=patience_s)
    with closing(other), pytest.raises(OSError, match=why):
        other.ask(do="look")


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
