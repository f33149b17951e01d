"""Experts' episodes are the same in one process and in several."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ItemError
from agentrl.ops.warmstart import expert_processes
from agentrl.ops.warmstart.expert_processes import Experts

TASKS = {
    name: Task(options={"style": "compact", "items": 7}, max_turns=3)
    for name in ("dbbench", "alfworld")
}


@pytest.fixture(autouse=True)
def _importable_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes import a module that exists: Streamlit's tests leave another `__main__`."""
    monkeypatch.setitem(sys.modules, "__main__", expert_processes)


@pytest.mark.slow
def test_several_processes_play_the_episodes_of_one_in_its_order() -> None:
    experts = Experts(TASKS, "plain", {"dbbench": 0.5}, worth=0)
    one, two = (list(experts.episodes(45, 3, processes)) for processes in (1, 2))
    assert one == two
    assert [name for name, _ in one] == ["dbbench"] * 45 + ["alfworld"] * 45


@pytest.mark.slow
def test_an_error_in_a_process_is_raised_as_it_is() -> None:
    experts = Experts({"gateway": Task(split="none")}, "plain", {}, worth=0)
    with pytest.raises(ItemError):
        list(experts.episodes(45, 3, 2))


PLAYS = """
import multiprocessing
from agentrl.core.config.sections.tasks import Task
from agentrl.ops.warmstart.expert_processes import Experts

if __name__ == "__main__":
    for _ in Experts({"dbbench": Task()}, "plain", {}).episodes(10**6, 0, 2):
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
"""


@pytest.mark.slow
def test_the_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "plays.py"
    script.write_text(PLAYS)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 2
    assert not psutil.wait_procs(children, timeout=30)[1]
