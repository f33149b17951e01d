"""Communication between the ranks of a trainer, and detection of a lost rank.

    rank 0 ── broadcast ──▶ the others receive              commands and states; may take hours
    rank 0 ── send_to ──▶ one receive_from ──▶ rank 0       what is this rank's; within the deadline
    every  ── sum_values ─▶ every                           numbers; within the deadline
    every  ══ beats, every 2 s, on a thread of its own ═▶ every   who stays away ends the others

If a rank dies or hangs, the heartbeats of the others notice it at any time, and each exits with
`RankLost.exit_code` and one line. Nothing is unpickled.
"""

import os
import re
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import distributed as dist

from agentrl.core.errors import RankLost
from agentrl.core.processes.rank_place import RankPlace
from agentrl.core.processes.threads import vital_thread

BEAT_S = 2.0  # between two beats
JOIN_S = 300.0  # for all to come together: each imports and loads first
LEAVE_S = 5.0  # for all to part
FOREVER = timedelta(days=3650)  # the beats say whether there is somebody to wait for
FAR = re.compile(r"gloo|nccl|connection|timed out|socket|store|peer", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ProcessGroups:
    """Process groups of all ranks, one per purpose, so that threads do not block each other.

    `commands`: of rank 0. `work`: of an update. `beats`: of the heartbeat thread.
    """

    commands: Any
    work: Any
    beats: Any


class Ranks:
    """Communication of this rank with the others. For one thread besides its own."""

    def __init__(self, place: RankPlace, timeout_s: float, device: str = "cpu") -> None:
        """Connect to the other ranks. Raises RankLost if one does not connect.

        timeout_s: of every collective operation except commands.
        """
        self.rank, self.local, self.size = place.rank, place.local, place.size
        self.timeout_s = timeout_s
        os.environ["LOCAL_RANK"] = str(place.local)  # deepspeed asks for it
        backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
        with rank_errors(self.size, "did not come together"):
            dist.init_process_group(
                backend,
                init_method=place.meeting,
                rank=place.rank,
                world_size=place.size,
                timeout=timedelta(seconds=JOIN_S),
            )
            short = timedelta(seconds=timeout_s / 2)
            self._groups = ProcessGroups(
                self.group(FOREVER, "gloo"), self.group(backend="gloo"), self.group(short, "gloo")
            )
            self.barrier()
            # DeepSpeed waits in this one, too: from here on as long as in the others.
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s))  # noqa: SLF001
        self._over, self._gone = threading.Event(), threading.Event()
        self._thread = vital_thread("beats", self._beat)
        self._thread.start()

    def group(self, timeout: timedelta | None = None, backend: str | None = None) -> Any:
        """Create a group of all ranks with a timeout."""
        wait = timeout or timedelta(seconds=self.timeout_s)
        return dist.new_group(range(self.size), timeout=wait, backend=backend)

    def barrier(self) -> None:
        """Barrier: wait for all ranks without a timeout."""
        with rank_errors(self.size, "was lost"):
            dist.barrier(self._groups.commands)

    def broadcast(self, words: bytes) -> None:
        """Broadcast a command from rank 0 to the others."""
        self._broadcast(torch.tensor([len(words)], dtype=torch.int64))
        self._broadcast(torch.from_numpy(np.frombuffer(words, np.uint8).copy()))

    def receive(self) -> bytes:
        """Receive the next command of rank 0. Raises RankLost if it is lost."""
        length = int(self._broadcast(torch.zeros(1, dtype=torch.int64)))
        return self._broadcast(torch.zeros(length, dtype=torch.uint8)).numpy().tobytes()

    def send_to(self, rank: int, body: bytes) -> None:
        """Send a body, which may not be empty, to one rank. Raises RankLost at the deadline."""
        with self._deadline():
            for each in (struct.pack("q", len(body)), body):
                content = torch.from_numpy(np.frombuffer(each, np.uint8).copy())
                dist.send(content, rank, self._groups.work)

    def receive_from(self, rank: int) -> bytes:
        """Receive the next body from one rank. Raises RankLost at the deadline."""
        with self._deadline():
            length = torch.zeros(1, dtype=torch.int64)
            dist.recv(length.view(torch.uint8), rank, self._groups.work)
            body = torch.zeros(int(length), dtype=torch.uint8)
            dist.recv(body, rank, self._groups.work)
        return body.numpy().tobytes()

    def broadcast_tensor(self, tensor: Tensor) -> Tensor:
        """Broadcast a host tensor of rank 0; others pass one of its shape and type."""
        return self._broadcast(tensor.contiguous())

    def sum_values(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        found = torch.from_numpy(values.copy())
        with self._deadline():
            dist.all_reduce(found, group=self._groups.work)
        return found.numpy()

    def shutdown(self) -> None:
        """Coordinated shutdown: heartbeats are no longer monitored."""
        self._over.set()
        self._thread.join(LEAVE_S)
        if not self._thread.is_alive():
            dist.destroy_process_group()

    def abort(self) -> None:
        """Abort: the other ranks notice the missing heartbeat and end."""
        self._gone.set()
        self._over.set()
        self._thread.join(LEAVE_S)

    def _broadcast(self, tensor: Tensor) -> Tensor:
        if tensor.numel():
            with rank_errors(self.size, "was lost"):
                dist.broadcast(tensor, 0, self._groups.commands)
        return tensor

    def _deadline(self) -> AbstractContextManager[None]:
        return rank_errors(self.size, f"not within {self.timeout_s:.0f} s")

    def _beat(self) -> None:
        """Exchange heartbeats until all ranks shut down.

        A rank that does not answer within half the timeout is lost.
        """
        patience, over = timedelta(seconds=self.timeout_s / 2), torch.zeros(1)
        while not (over.item() or self._gone.is_set()):
            self._over.wait(BEAT_S)
            over.fill_(float(self._over.is_set()))
            try:
                dist.monitored_barrier(self._groups.beats, patience, wait_all_ranks=True)
                dist.all_reduce(over, dist.ReduceOp.MIN, self._groups.beats)
            except RuntimeError as error:
                if self._over.wait(0.5):  # they part, or the main thread has words of its own
                    return
                _end(self.rank, self.size, str(error))


@contextmanager
def join_ranks(place: RankPlace, timeout_s: float, device: str) -> Iterator[Ranks]:
    """Context manager for the connected ranks. Raises RankLost."""
    ranks = Ranks(place, timeout_s, device)
    try:
        yield ranks
    except BaseException:
        ranks.abort()
        raise
    ranks.shutdown()


@contextmanager
def rank_errors(size: int, what: str) -> Iterator[None]:
    """Convert network errors between ranks to RankLost."""
    try:
        yield
    except RuntimeError as error:
        words = str(error).splitlines()[0]
        if not isinstance(error, dist.DistError) and not FAR.search(words):
            raise
        raise RankLost(f"one of {size} ranks {what}: {words[:160]}") from error


def _end(rank: int, size: int, words: str) -> None:
    """Exit from the heartbeat thread, because the main thread may hang in a collective."""
    missing = re.search(r"Ranks? ([\d, ]+) failed", words)
    who = f"rank {missing.group(1).strip()}" if missing and rank == 0 else "another rank"
    print(f"agentrl: {who} of {size} does not answer rank {rank}", file=sys.stderr, flush=True)
    os._exit(RankLost.exit_code)
