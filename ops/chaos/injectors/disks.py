"""Faults: a full disk, of a service, or of the trainer when a snapshot is due."""

import contextlib
import errno
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.ops.chaos.cluster import BROKER, STORE, Command
from agentrl.ops.chaos.fault_course import Course, hold_for, wait_until
from agentrl.ops.chaos.injectors.restarts import service_answers
from agentrl.ops.chaos.observer import RunObserver
from agentrl.ops.runs.begin import checkpoints_home

FULL_S = (5.0, 40.0)
ANSWER_S = 15.0  # for a service to go on by itself once it has room; then it is restarted
MOST = 8 << 30  # bytes of a disk that may be filled
BLOCKS = (1 << 20, 4096, 1)  # bytes at once, as long as they fit
SNAPSHOT = ".snapshot"  # of the folder's name
SNAPSHOTS = 2
SNAPSHOTS_S = 300.0  # for so many to be due


def fill_disk(
    observer: RunObserver, random: random.Random, service: str, folder: Path, restart: str
) -> Course:
    """The service's disk has no byte left; then it has room again.

    A Postgres that ended meanwhile, and a RabbitMQ in any case, is started again by the command
    `restart`, empty where there is none. RabbitMQ goes on to answer, but its quorum queues have
    ended with the first write that failed, and stay away until it is restarted.
    """
    with fill_folder(folder) as fill:
        for _ in hold_for(random.uniform(*FULL_S)):
            fill()
            yield
    if service == STORE:
        yield from wait_until(lambda: service_answers(observer, service), ANSWER_S)
    if restart and (service == BROKER or not service_answers(observer, service)):
        running = Command(restart, observer.cluster.home / f"restart-{service}.log")
        while not running.done():
            yield
    while not service_answers(observer, service):
        yield


def refuse_snapshots(observer: RunObserver, _random: random.Random, name: str) -> Course:
    """The trainer's disk has room for checkpoints, but not for a snapshot, while two are due.

    No file that it writes may be larger than those of a checkpoint (RLIMIT_FSIZE: EFBIG); a
    snapshot's holds the optimizer's state as well.
    """
    pid, seen = observer.pid(name) or 0, observer.seen
    last = (seen.version if seen else 0) + SNAPSHOTS * observer.config.trainer.snapshot_every + 1
    largest = largest_file(checkpoints_home(observer.cluster.direct, observer.run_id))
    with contextlib.suppress(ProcessLookupError):  # it ended by itself; the next has its disk again
        former = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest, former[1]))
        yield from wait_until(
            lambda: observer.pid(name) != pid or (observer.seen or seen).version >= last,  # type: ignore[union-attr]
            SNAPSHOTS_S,
        )
        resource.prlimit(pid, resource.RLIMIT_FSIZE, former)
    while not observer.is_healthy(name):
        yield


def largest_file(checkpoints: Path) -> int:
    """Bytes of the largest file of a checkpoint in the folder; snapshots are none."""
    largest = 0
    for file in checkpoints.glob("*/*"):
        if file.parent.suffix != SNAPSHOT and not file.parent.name.startswith("."):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                largest = max(largest, file.stat().st_size)
    return largest


def has_own_disk(folder: Path, home: Path) -> bool:
    """Whether a folder lies on a disk of its own, not that of `home`, small enough to be filled."""
    try:
        own = folder.stat().st_dev != home.stat().st_dev
        return own and os.access(folder, os.W_OK) and shutil.disk_usage(folder).total <= MOST
    except OSError:
        return False


@contextmanager
def fill_folder(folder: Path) -> Iterator[Callable[[], None]]:
    """No byte is left on the disk of a folder. Yields what fills it again."""
    filler = folder / "chaos.filler"
    with filler.open("wb", buffering=0) as file:

        def fill() -> None:
            for size in BLOCKS:
                with contextlib.suppress(_NoRoom):
                    while True:
                        _write(file.fileno(), bytes(size))

        try:
            fill()
            yield fill
        finally:
            filler.unlink()


class _NoRoom(Exception):
    pass


def _write(file: int, block: bytes) -> None:
    try:
        if os.write(file, block) < len(block):
            raise _NoRoom
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _NoRoom from None
