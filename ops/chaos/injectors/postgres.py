"""Faults of Postgres: no writes, a held lock, no free connection, a stepped clock, lost commits."""

import os
import random
import signal
from pathlib import Path

from agentrl.core.logging import get_logger
from agentrl.db.admin import fault_injection
from agentrl.ops.chaos.cluster import send_signal
from agentrl.ops.chaos.fault_course import Course, hold_for, wait_until
from agentrl.ops.chaos.observer import RunObserver

READ_ONLY_S = (1.5, 20.0)
LOCK_S = 36.0  # longer than the 30 s that a pool of connections waits
EXHAUSTED_S = (5.0, 40.0)  # at most longer than the 30 s that a process's own pool waits
FORWARD_S = (20.0, 300.0)  # beyond every lease and deadline of configs/chaos.toml
BACK_S = (5.0, 40.0)
LAG_S = 10.0  # until every process has read the clock again
COMMIT_S = 120.0  # for an update to be committed, which is then lost
NOTICE_S = 15.0  # for policy servers to find that their rows are lost, and end

log = get_logger()


def refuse_writes(observer: RunObserver, random: random.Random) -> Course:
    """The database takes no write for a while, as one that is no primary any more."""
    with fault_injection.make_read_only(observer.cluster.direct.store_url()):
        yield from hold_for(random.uniform(*READ_ONLY_S))
    yield


def lock_episodes(observer: RunObserver, _random: random.Random) -> Course:
    """Somebody holds a lock that every writer of episodes waits for."""
    with fault_injection.lock_episodes(observer.cluster.direct.store_url()):
        yield from hold_for(LOCK_S)
    yield


def exhaust(observer: RunObserver, random: random.Random) -> Course:
    """Take the server's connections, those of the run as well, and let them go after a while."""
    with fault_injection.take_connections(observer.cluster.direct.store_url()) as take:
        for _ in hold_for(random.uniform(*EXHAUSTED_S)):
            take()
            yield
    yield


def step_clock(observer: RunObserver, random: random.Random) -> Course:
    """Step the host's clock once, forward or back, as a person or NTP does.

    A step back is over when the clock is where it was.
    """
    url, before = observer.cluster.direct.store_url(), observer.seen.clock if observer.seen else 0.0
    forward = random.random() < 0.5
    by_s = random.uniform(*FORWARD_S) if forward else -random.uniform(*BACK_S)
    observer.ambiguous.append((before + min(by_s, 0.0), before + max(by_s, 0.0) + LAG_S))
    fault_injection.step_clock(url, by_s)
    yield
    if not forward:
        yield from wait_until(
            lambda: observer.seen is not None and observer.seen.clock > before, -4 * by_s
        )


def lose_commits(observer: RunObserver, _random: random.Random) -> Course:
    """Let nothing reach the disk until an update was committed; then crash the server.

    It loses confirmed commits, as in an asynchronous failover. Postgres answers a commit at once
    where synchronous_commit is off, and writes it a little later by its WAL writer, which is
    stopped here. Killing that process makes the server begin anew from what is on its disk.
    """
    url = observer.cluster.direct.store_url()
    server = fault_injection.server(url)
    if server is None:
        return
    pid = server.walwriter
    version = observer.seen.version if observer.seen else 0
    began = observer.store.clock()
    with fault_injection.delay_commits(url):
        os.kill(pid, signal.SIGSTOP)
        try:
            yield from wait_until(
                lambda: observer.seen is not None and observer.seen.version > version, COMMIT_S
            )
            before = observer.seen.version if observer.seen else 0
        finally:
            send_signal(pid, signal.SIGKILL)
        observer.seen = None
        while observer.seen is None:
            yield
    observer.forget_claims()
    observer.ambiguous.append((began, observer.seen.clock + NOTICE_S))  # serving rows may be lost
    log.info("Commits lost", version_before=before, version=observer.seen.version)
    yield


def is_local(walwriter: int) -> bool:
    """Whether the process of that number is the WAL writer of a Postgres, and may be signalled."""
    try:
        os.kill(walwriter, 0)
        return b"walwriter" in Path(f"/proc/{walwriter}/cmdline").read_bytes()
    except OSError:
        return False
