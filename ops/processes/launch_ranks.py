"""Starts, watches and stops the ranks of a trainer on this machine together.

    agentrl trainer ─▶ rank 0 · rank 1 · …      each is `agentrl trainer` with its rank

If one rank fails or hangs, the others are stopped, and the output of the first is the error.
SIGTERM goes to rank 0, which saves a snapshot and stops the others.
"""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.core.config.config import Config
from agentrl.core.errors import RankLost
from agentrl.core.logging import get_logger
from agentrl.core.processes.process import SUPERVISOR, agentrl_command
from agentrl.core.processes.rank_place import MEETING
from agentrl.ops.supervisor.exit_reasons import last_line
from agentrl.ops.supervisor.logfiles import start_process

LOOK_S = 0.1
TOGETHER_S = 3.0  # after the first has ended, before the others are killed
SUPERVISED = 0.9  # of trainer.stop_s: the ranks end before the supervisor kills their parent
QUIET = (0, -signal.SIGTERM)  # of a rank told to end: python takes no signal while it leaves

log = get_logger()


@dataclass(slots=True)
class Rank:
    """A rank process. `log`: None if it shares the output of this process."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path | None


def launch_ranks(config: Config, path: Path, stop: threading.Event, *, supervised: bool) -> int:
    """Run `trainer.ranks` processes until all have ended; return the exit code. Raises RankLost."""
    with tempfile.TemporaryDirectory(prefix="agentrl-ranks-") as folder:
        ranks = [
            _start_rank(config, path, number, Path(folder) / "meeting")
            for number in range(config.trainer.ranks)
        ]
        try:
            stop_s = config.trainer.stop_s * (SUPERVISED if supervised else 1.0)
            return _watch(ranks, stop, stop_s)
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.wait()


def _start_rank(config: Config, path: Path, number: int, meeting: Path) -> Rank:
    output = config.home() / "logs" / f"trainer-rank-{number}.log" if number else None
    environment = os.environ | {
        SUPERVISOR: str(os.getpid()),
        MEETING: meeting.as_uri(),
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(config.trainer.ranks),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    command = agentrl_command("trainer", str(path), "--supervised")
    return Rank(number, start_process(command, output, environment), output)


def _watch(
    ranks: Sequence[Rank], stop: threading.Event, stop_s: float, together_s: float = TOGETHER_S
) -> int:
    """Wait until all have ended, or one has failed. Raises RankLost."""
    stopped_at, over = 0.0, 0.0
    while alive := [rank for rank in ranks if rank.process.poll() is None]:
        now = time.monotonic()
        if stop.is_set() and not stopped_at:
            stopped_at = now
            ranks[0].process.send_signal(signal.SIGTERM)
        if len(alive) < len(ranks) and not over:
            over = now
        if over and now - over > together_s:
            break
        if stopped_at and now - stopped_at > stop_s:
            log.warning("Ranks did not exit in time", ranks=[rank.number for rank in alive])
            return 0
        time.sleep(LOOK_S)
    if stopped_at and not alive and all(rank.process.returncode in QUIET for rank in ranks):
        return 0
    return _verdict(ranks, {rank.number for rank in alive})


def _verdict(ranks: Sequence[Rank], silent: set[int]) -> int:
    """Combine the exit codes. `silent`: ranks that did not end."""
    codes = {rank.number: rank.process.returncode for rank in ranks if rank.number not in silent}
    size = len(ranks)
    for number, code in codes.items():
        if code < 0:
            name = signal.Signals(-code).name
            raise RankLost(f"rank {number} of {size} was killed by {name}")
    if failed := [number for number, code in codes.items() if code not in (0, RankLost.exit_code)]:
        rank = ranks[failed[0]]
        if rank.log is None:  # it has said it where we would
            return codes[rank.number]
        words = last_line(rank.log).removeprefix("agentrl: ")
        raise RankLost(f"rank {rank.number} of {size}: {words}")
    if silent:
        named = ", ".join(map(str, sorted(silent)))
        raise RankLost(f"rank {named} of {size} hangs although the other ranks have ended")
    if any(codes.values()):
        raise RankLost(f"{size} ranks lost their connections", hint="see the lines above")
    return 0
