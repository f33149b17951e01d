"""A trainer under DeepSpeed's launcher: one machine, then two; the rest of its run beside it.

There is no second machine here: what the launcher starts on each by ssh is started twice, told its
place, with a folder that both reach.
"""

import base64
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from backends import NEEDS_DEEPSPEED
from running import ROOT, agentrl, eventually, processes_of, version_of

from agentrl.core import config_loading
from agentrl.core.types import RunState
from agentrl.db.queries import progress
from agentrl.db.store import open_store
from agentrl.db.transitions import runs
from agentrl.ops.runs.begin import begin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1600), NEEDS_DEEPSPEED]

CONFIG = str(ROOT / "configs" / "quickstart.toml")
TRAINER = ["--no_local_rank", "--module", "agentrl.cli.main", "trainer", CONFIG]
UPDATES = 8  # of which a rank is killed after the first or one soon after
START_S = 400.0  # on a machine that is busy with other tests


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    section = {"ENGINE": "deepspeed", "DEEPSPEED__ZERO": "2", "SNAPSHOT_EVERY": "1"}
    return {
        "AGENTRL__RUN__HOME": str(tmp_path / "home"),
        "AGENTRL__RUN__NAME": "launched",
        "AGENTRL__RUN__STOP_UPDATES": str(UPDATES),
        "AGENTRL__MODEL__PATH": str(ROOT / "models" / "tiny"),
        "AGENTRL__DISPATCH__GROUPS_PER_UPDATE": "2",
        **{f"AGENTRL__TRAINER__{name}": value for name, value in section.items()},
        **{"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }


@pytest.fixture
def beside(environment: Mapping[str, str], tmp_path: Path) -> Iterator[None]:
    """The other processes of the run, each started alone."""
    with ExitStack() as stack:
        for role in ("dispatcher", "recorder", "worker", "policy"):
            output = tmp_path / f"{role}.log"
            stack.enter_context(agentrl(role, CONFIG, environment=environment, output=output))
        yield


class Launched:
    """A launcher's processes, ended with all they started."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.log = folder / "launched.log"
        self.home = Path(environment["AGENTRL__RUN__HOME"])
        self._environment = os.environ | environment
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str) -> None:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*command, *TRAINER],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)

    def said(self) -> str:
        return self.log.read_text()[-6000:]

    def ranks(self) -> dict[int, int]:
        """Pids by rank."""
        found = {}
        for pid in processes_of(self.home):
            with suppress(OSError):  # one that ends meanwhile
                told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                ranks = [int(each[5:]) for each in told if each.startswith(b"RANK=")]
                if ranks and b"launcher" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found[ranks[0]] = pid
        return found

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for pid in self.ranks().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def launched(environment: Mapping[str, str], tmp_path: Path) -> Iterator[Launched]:
    made = Launched(environment, tmp_path)
    yield made
    made.end()


def _port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def test_a_launchers_ranks_train_lose_one_another_and_go_on_on_other_machines(
    beside: None, launched: Launched
) -> None:
    launched.start("deepspeed", "--num_accelerators", "2", "--master_port", _port())
    eventually(
        lambda: version_of(launched.home, "launched") >= 1, within_s=START_S, text=launched.said
    )
    ranks = launched.ranks()
    assert sorted(ranks) == [0, 1]
    os.kill(ranks[1], signal.SIGKILL)
    assert launched.processes[0].wait(60) != 0, launched.said()
    eventually(lambda: not launched.ranks(), within_s=60, text=launched.said)

    port, world = _port(), base64.urlsafe_b64encode(json.dumps({"a": [0], "b": [0]}).encode())
    node = [sys.executable, "-m", "deepspeed.launcher.launch", f"--world_info={world.decode()}"]
    for number in (0, 1):
        launched.start(
            *node, f"--node_rank={number}", "--master_addr=127.0.0.1", f"--master_port={port}"
        )
    assert [process.wait(START_S) for process in launched.processes[1:]] == [0, 0], launched.said()
    store = open_store(f"sqlite:///{launched.home / 'store.db'}")
    with closing(store), store.read() as session:
        run = runs.require_run(session, "launched")
        assert (run.state, run.version) == (RunState.COMPLETED, UPDATES)
        assert progress.disagreements(session, run.run_id) == []
    assert launched.ranks() == {}


def test_ranks_of_a_run_that_is_over_all_end_well_and_at_once(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    begin(config_loading.load(Path(CONFIG), environment))
    with sqlite3.connect(Path(environment["AGENTRL__RUN__HOME"]) / "store.db") as connection:
        connection.execute("UPDATE runs SET state = 'completed', reason = 'enough'")
    connection.close()
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _port(), "WORLD_SIZE": "2"}
    log = tmp_path / "log"
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                agentrl(
                    "trainer", CONFIG, environment=environment | meeting | {"RANK": n}, output=log
                )
            )
            for n in ("1", "0")
        ]
        assert [rank.wait(START_S / 2) for rank in ranks] == [0, 0], log.read_text()
    assert "run launched is over (completed: enough)" in log.read_text()
