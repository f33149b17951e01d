"""Checks of changes, run with this machine's bash."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from running import eventually

from agentrl.envs.tasks.oslinux.templates.changes import stop_process


class Processes:
    """A problem of `stop_process` in `home`, with seconds that no machine of another test has."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._problem = stop_process(Random(0))
        self.run(self._problem.init())
        self.files = sorted(home.glob("*/*.pid"))
        self.ids = {path: int(path.read_text()) for path in self.files}
        chosen = self._problem.short.split()[1]
        (self.chosen,) = (path for path in self.files if path.stem == chosen)
        self._await(lambda: all(map(self._runs, self.files)))

    def run(self, script: str, *arguments: str) -> int:
        """Run a script of the item, or the agent's; return its exit status."""
        ours = script.replace("/root", str(self._home)).replace("9999", str(10**6 + os.getpid()))
        nothing = subprocess.DEVNULL
        argv = ["bash", "-c", ours, "--", *arguments]
        return subprocess.run(argv, stdout=nothing, stderr=nothing, check=False).returncode

    def kill(self, path: Path) -> None:
        os.kill(self.ids[path], 9)
        self._await(lambda: not self._runs(path))

    def passes(self, answer: str = "done") -> bool:
        return self.run(self._problem.check, answer) == 0

    def _await(self, what: Callable[[], bool]) -> None:
        eventually(what, within_s=60, text=lambda: str(self.ids))

    def _runs(self, path: Path) -> bool:
        try:
            return Path(f"/proc/{self.ids[path]}/cmdline").read_bytes().startswith(b"sleep")
        except (FileNotFoundError, ProcessLookupError):
            return False


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    processes.run("kill " + " ".join(map(str, processes.ids.values())))


def test_the_process_of_a_file_is_to_be_stopped(processes: Processes) -> None:
    assert not processes.passes()
    processes.kill(processes.chosen)
    assert processes.passes()


def test_a_removed_or_rewritten_file_stops_no_process(processes: Processes) -> None:
    processes.chosen.write_text("99999999\n")
    assert not processes.passes()
    processes.chosen.unlink()
    assert not processes.passes()


def test_the_files_stay_and_the_other_processes_run(processes: Processes) -> None:
    processes.kill(processes.chosen)
    processes.chosen.write_text("")
    assert not processes.passes()
    processes.chosen.write_text("1\n")
    assert processes.passes()
    other = next(path for path in processes.files if path != processes.chosen)
    processes.kill(other)
    seconds = str(10**6 + os.getpid()) + str(processes.files.index(other))
    assert not processes.passes(seconds), "the answer is an argument of the check's shell"
