"""Real processes that learn to know of one another, and of one another's end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import eventually

from agentrl.core.errors import ConfigError, RankLost
from agentrl.core.processes.rank_place import MEETING, RankPlace, find_rank_place
from agentrl.trainer.engines.ranks import _end

START_S = 120.0
END_S = 120.0  # a deadline of 12 s or less, and what python takes to end on a busy machine
PATIENT_S = 60.0  # of ranks that are not to be missed, however busy the machine is
WORK = """
import os, sys, time
import numpy as np
from agentrl.core.processes.rank_place import find_rank_place
from agentrl.trainer.engines.ranks import join_ranks
own = find_rank_place(os.environ)
with join_ranks(own, float(sys.argv[1]), "cpu") as ranks:
    print("together", flush=True)
    {what}
"""


class Together:
    """Processes that run the same lines, each told its place."""

    def __init__(self, folder: Path, size: int, what: str, timeout_s: float = 6.0) -> None:
        self.logs = [folder / f"{rank}.log" for rank in range(size)]
        self.processes = []
        for rank, log in enumerate(self.logs):
            environment = os.environ | {
                **{"RANK": str(rank), "WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo"},
                MEETING: (folder / "meeting").as_uri(),
            }
            with log.open("wb") as output:
                program = WORK.format(what=what.replace("\n", "\n    "))
                command = [sys.executable, "-c", program, str(timeout_s)]
                self.processes.append(
                    subprocess.Popen(command, env=environment, stdout=output, stderr=output)
                )

    def wait_together(self) -> None:
        eventually(
            lambda: all("together" in log.read_text() for log in self.logs),
            within_s=START_S,
            text=lambda: str(self.said()),
        )

    def said(self) -> list[str]:
        return [log.read_text()[-1500:] for log in self.logs]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def together(tmp_path: Path) -> Iterator[list[Together]]:
    started: list[Together] = []
    yield started
    for each in started:
        each.end()


def test_a_process_without_a_launcher_has_no_place() -> None:
    assert find_rank_place({}) is None
    told = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    assert find_rank_place(told) == RankPlace(1, 0, 2, "env://")
    assert find_rank_place(told | {MEETING: "file:///x"}) == RankPlace(1, 0, 2, "file:///x")


@pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("-1", "2"), ("one", "2")])
def test_a_place_that_cannot_be_is_refused(rank: str, size: str) -> None:
    with pytest.raises(ConfigError, match="RANK"):
        find_rank_place({"RANK": rank, "WORLD_SIZE": size})


@pytest.mark.parametrize(
    ("rank", "words", "who"),
    [
        (0, "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 2000 ms", "rank 1, 2"),
        (0, "connection closed by peer", "another rank"),
        (1, "[Rank 1]: Rank 0 failed to pass monitoredBarrier in 2000 ms", "another rank"),
    ],
)
def test_only_rank_0_knows_who_is_missing(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rank: int,
    words: str,
    who: str,
) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit) as left:
        _end(rank, 3, words)
    assert left.value.code == RankLost.exit_code
    said = capsys.readouterr().err
    assert said == f"agentrl: {who} of 3 does not answer rank {rank}\n"


@pytest.mark.slow
def test_what_rank_0_tells_the_others_hear_and_sums_are_over_all(
    together: list[Together], tmp_path: Path
) -> None:
    """Rank 1 is the last: the others have come to their end and wait for it there."""
    done = str(tmp_path / "done-{}")
    what = (
        "from pathlib import Path\n"
        "if own.rank == 0:\n    ranks.broadcast(b'do this'); ranks.broadcast(b'')\n"
        "else:\n    assert (ranks.receive(), ranks.receive()) == (b'do this', b'')\n"
        "found = ranks.sum_values(np.array([1.0, 10.0 * own.rank]))\n"
        "assert found.tolist() == [3.0, 30.0], found\n"
        f"open({done!r}.format(own.rank), 'w').close()\n"
        f"others = [Path({done!r}.format(rank)) for rank in (0, 2)]\n"
        "while own.rank == 1 and not all(path.exists() for path in others):\n"
        "    time.sleep(0.05)"
    )
    together.append(Together(tmp_path, 3, what, PATIENT_S))
    for process in together[0].processes:
        assert process.wait(START_S) == 0, together[0].said()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1], ids=["rank 0", "rank 1"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_when_one_dies_or_hangs_the_others_end_with_one_line(
    together: list[Together], tmp_path: Path, victim: int, how: signal.Signals
) -> None:
    """Rank 1 waits for words, rank 0 computes: neither is in a meeting of all."""
    what = "if own.rank == 0:\n    time.sleep(600)\nelse:\n    ranks.receive()"
    together.append(Together(tmp_path, 2, what, timeout_s=6.0))
    together[0].wait_together()
    together[0].processes[victim].send_signal(how)
    other = together[0].processes[1 - victim]
    assert other.wait(END_S) in (RankLost.exit_code, 1), together[0].said()
    words = together[0].said()[1 - victim]
    assert "does not answer" in words or "RankLost" in words


@pytest.mark.slow
def test_an_error_of_one_is_its_own_and_ends_the_others(
    together: list[Together], tmp_path: Path
) -> None:
    what = "if own.rank == 1:\n    raise ValueError('mine')\nranks.receive()"
    together.append(
        Together(tmp_path, 3, what.replace("ranks.receive()", "time.sleep(600)"), PATIENT_S)
    )
    codes = [process.wait(START_S) for process in together[0].processes]
    assert codes[1] == 1
    assert "ValueError: mine" in together[0].said()[1]
    assert codes[0] == codes[2] == RankLost.exit_code, together[0].said()


@pytest.mark.slow
def test_a_meeting_that_one_does_not_come_to_ends_at_the_deadline(
    together: list[Together], tmp_path: Path
) -> None:
    """Both live and beat: only the deadline of the wait itself can end it."""
    what = "if own.rank == 0:\n    ranks.sum_values(np.ones(1))\nelse:\n    time.sleep(600)"
    together.append(Together(tmp_path, 2, what, timeout_s=12.0))
    together[0].wait_together()
    assert together[0].processes[0].wait(END_S) == 1, together[0].said()
    assert "RankLost: one of 2 ranks not within 12 s" in together[0].said()[0]
