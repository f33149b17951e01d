"""How the ends of ranks are read, on small processes in their place."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.core.errors import RankLost
from agentrl.ops.processes import launch_ranks
from agentrl.ops.processes.launch_ranks import Rank

WAIT = "import time; time.sleep(60)"
LEAVE = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(0)); "
    "print(flush=True); time.sleep(60)"
)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[list[Rank]]:
    """Filled by `_ranks`; ended afterwards."""
    ranks: list[Rank] = []
    yield ranks
    for rank in ranks:
        rank.process.kill()
        rank.process.communicate()


def _ranks(crew: list[Rank], folder: Path, *programs: str) -> list[Rank]:
    for number, program in enumerate(programs):
        log = folder / f"{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdout=subprocess.PIPE if number == 0 else output,
                stderr=output,
            )
        crew.append(Rank(number, process, log if number else None))
    return crew


def _watched(ranks: list[Rank], stop: threading.Event | None = None, stop_s: float = 60.0) -> int:
    return launch_ranks._watch(ranks, stop or threading.Event(), stop_s)


def test_ranks_that_end_well_end_well(crew: list[Rank], tmp_path: Path) -> None:
    assert _watched(_ranks(crew, tmp_path, "", "")) == 0


def test_a_rank_that_was_killed_is_named_with_its_signal(crew: list[Rank], tmp_path: Path) -> None:
    ranks = _ranks(crew, tmp_path, f"{WAIT}", f"{WAIT}")
    threading.Timer(0.3, lambda: ranks[1].process.send_signal(signal.SIGKILL)).start()
    with pytest.raises(RankLost, match="rank 1 of 2 was killed by SIGKILL"):
        _watched(ranks)


def test_the_words_of_a_rank_that_failed_are_the_error(crew: list[Rank], tmp_path: Path) -> None:
    """Not those of the ranks that lost it."""
    failing = "import sys; print('agentrl: no cuda:1 here', file=sys.stderr); sys.exit(2)"
    ranks = _ranks(crew, tmp_path, f"import sys; sys.exit({RankLost.exit_code})", failing)
    with pytest.raises(RankLost, match="rank 1 of 2: no cuda:1 here"):
        _watched(ranks)


def test_the_first_rank_says_its_error_itself_and_its_exit_code_stays(
    crew: list[Rank], tmp_path: Path
) -> None:
    lost = f"import sys; sys.exit({RankLost.exit_code})"
    assert _watched(_ranks(crew, tmp_path, "import sys; sys.exit(3)", lost)) == 3


def test_a_rank_that_does_not_end_when_the_others_had_to_is_said_to_hang(
    crew: list[Rank], tmp_path: Path
) -> None:
    lost = f"import sys; sys.exit({RankLost.exit_code})"
    with pytest.raises(RankLost, match="rank 1 of 2 hangs"):
        launch_ranks._watch(
            _ranks(crew, tmp_path, lost, WAIT), threading.Event(), 60.0, together_s=0.5
        )


def test_a_signal_goes_to_the_first_rank_alone(crew: list[Rank], tmp_path: Path) -> None:
    """The others are sent home by it: here the second leaves by itself, without a signal."""
    second = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(9)); time.sleep(0.8)"
    ranks = _ranks(crew, tmp_path, LEAVE, second)
    assert ranks[0].process.stdout is not None
    ranks[0].process.stdout.readline()
    stop = threading.Event()
    stop.set()
    assert _watched(ranks, stop) == 0
    assert [rank.process.returncode for rank in ranks] == [0, 0]


def test_ranks_that_ignore_a_signal_are_given_up(crew: list[Rank], tmp_path: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    )
    ranks = _ranks(crew, tmp_path, deaf, WAIT)
    assert ranks[0].process.stdout is not None
    ranks[0].process.stdout.readline()
    stop = threading.Event()
    stop.set()
    assert _watched(ranks, stop, 2.0) == 0
    assert ranks[0].process.poll() is None  # whoever started them kills them now
