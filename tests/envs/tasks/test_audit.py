"""What an audit finds in an environment: splits, answers, rewards, times and what stays behind."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from task_plugin import add_task

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.audit import AuditSettings, audit_figures
from agentrl.envs.tasks.check import Figure
from agentrl.ops.tasks.check import audit

FEW = AuditSettings(items=4, episodes=40, call_timeout_s=5.0)
TASK = """
import itertools, subprocess, threading
from agentrl.core.errors import ItemError
from agentrl.envs.contract import Item, Message, Observation, Outcome, ToolCall, strings

count = itertools.count()
SIZE = 1 << 20
kept, processes, waiting = [], [], threading.Event()

class Room:
    tools = (strings("go", "Go.", "where"),)
    def __init__(self, kind, item):
        self.kind, self.item = kind, item
    def start(self):
        return Observation.of("room", self.item.item_id)
    def call(self, calls):
        if self.kind == "fickle":
            return Outcome((Message("tool", str(next(count))),), done=True)
        if self.kind == "broken":
            raise KeyError("where")
        if self.kind == "hanging":
            waiting.wait()
        if self.kind == "leaking":
            kept.append(b"x" * SIZE)
        if self.kind == "forking":
            processes.append(subprocess.Popen(["sleep", "30"]))
        out = calls[0].arguments == {"where": "out"} and self.kind != "pointless"
        if self.kind == "sorted":
            out = out and self.item.item_id == "test-4"
        return Outcome((), done=True, reward=float(out))
    def close(self):
        pass

class Expert:
    def act(self, messages):
        return ToolCall("go", {"where": "out"})

class source:
    name, max_turns, splits = "room", 2, ("train", "test")
    def __init__(self, options):
        self.kind = options.get("kind", "")
    def items(self, split):
        if split == "test" and self.kind == "empty":
            return []
        first = 0 if split == "train" or self.kind == "shared" else 10
        return [Item("room", f"{split}-{n}", {"n": first + n}) for n in range(5)]
    def make(self, item):
        return Room(self.kind, item)
    def expert(self, item, *, seed, noise=0.0):
        if self.kind == "unknown":
            raise ItemError("nobody knows")
        return Expert()
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A task of one-turn episodes; its option `kind` says what is wrong with it."""
    add_task(tmp_path, monkeypatch, "room", TASK)
    yield "room"
    if module := sys.modules.get("room_task"):
        module.waiting.set()
        for process in module.processes:
            process.kill()
            process.wait()


def figures(task: str, kind: str, settings: AuditSettings = FEW) -> dict[str, Figure]:
    return {each.name: each for each in audit_figures(task, {"kind": kind}, settings)}


def faults(found: dict[str, Figure]) -> list[str]:
    """Names of the figures out of bounds, without memory, which other tests of a process change."""
    return [name for name, each in found.items() if each.ok is False and name != "memory"]


def test_a_sound_environment_has_no_fault_and_its_rewards_are_printed(room: str) -> None:
    found = figures(room, "")
    assert not faults(found)
    assert found["items train"].value == "5"
    assert found["reward expert"].value == "1.00 (1.00 to 1.00, 4 episodes)"
    assert found["reward constant"].value == "0.00 (0.00 to 0.00, 4 episodes)"
    assert found["reachable reward"].value == "1.00 at best, 2 different"
    assert found["same answers"].value == "4 of 4 episodes"
    assert found["calls that hang or fail"].value == "0 of 40 episodes"
    assert found["time of call"].value.startswith("p50 ")


@pytest.mark.parametrize(
    ("kind", "faulty", "value"),
    [
        ("shared", "leak train into test", "5"),
        ("fickle", "same answers", "0 of 4 episodes; test-0: another answer to turn 1"),
        ("pointless", "reachable reward", "0.00 at best, 1 different"),
        ("forking", "processes left", "40"),
    ],
)
def test_each_fault_is_found_by_its_own_figure(
    room: str, kind: str, faulty: str, value: str
) -> None:
    found = figures(room, kind)
    assert (found[faulty].value, found[faulty].ok) == (value, False)


@pytest.mark.parametrize(("kind", "faulty"), [("", []), ("leaking", ["memory"])])
def test_memory_that_every_episode_keeps_is_a_fault(
    room: str, kind: str, faulty: list[str], tmp_path: Path
) -> None:
    command = f"envs audit {room} -o kind={kind} --items 4 --episodes 40 --json".split()
    ended = subprocess.run(  # a process of its own: other tests of this one free their memory
        [sys.executable, "-m", "agentrl.cli.main", *command],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == bool(faulty), ended.stderr
    assert [row["name"] for row in json.loads(ended.stdout) if row["ok"] is False] == faulty


def test_the_items_that_are_played_come_from_the_whole_split(room: str) -> None:
    """Of five items in the order of their kinds, four are played, among them the last."""
    assert figures(room, "sorted")["reward expert"].value == "0.25 (0.00 to 1.00, 4 episodes)"


def test_what_an_environment_raises_is_a_finding(room: str) -> None:
    found = figures(room, "broken")
    failed = found["calls that hang or fail"]
    place = r"raised at .*/room_task\.py:\d+"
    assert re.fullmatch(rf"5 of 5 episodes; train-0: KeyError: 'where', {place}", failed.value)
    assert faults(found) == ["rewards", "same answers", "calls that hang or fail"]


def test_an_empty_split_is_a_finding(room: str) -> None:
    found = figures(room, "empty")
    assert faults(found) == ["items test", "rewards", "same answers"]
    assert found["rewards"].value == "split test has no items"


def test_calls_that_hang_end_the_audit_after_a_few(room: str) -> None:
    found = figures(room, "hanging", AuditSettings(items=1, episodes=40, call_timeout_s=0.05))
    failed = found["calls that hang or fail"]
    assert failed.value == "5 of 5 episodes; train-0: a call of the environment took over 0.05 s"
    assert faults(found) == ["rewards", "same answers", "calls that hang or fail"]


def test_a_task_without_an_expert_is_measured_by_chance(room: str) -> None:
    found = figures(room, "unknown")
    assert (found["reward expert"].value, found["reward expert"].ok) == ("nobody knows", None)
    assert found["reward random"].ok is True


def test_the_command_prints_one_array_and_says_whether_all_is_well(
    room: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, sound in (("", True), ("shared", False)):
        is_well = audit(room, {"kind": kind}, AuditSettings(2, 3, 5.0), as_json=True)
        found = {row["name"]: row["ok"] for row in json.loads(capsys.readouterr().out)}
        assert found["leak train into test"] is sound
        assert is_well is (False not in found.values())
        del found["memory"]  # which other tests of this process change
        assert (False not in found.values()) is sound
    with pytest.raises(ItemError, match="unknown task rom; did you mean room"):
        audit("rom", {}, FEW, as_json=True)
