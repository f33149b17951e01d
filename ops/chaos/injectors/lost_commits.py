"""Fault: the database crashes and loses confirmed commits, as in an asynchronous failover."""

import os
import random
import signal
from pathlib import Path

from agentrl.core.logging import get_logger
from agentrl.db.admin import fault_injection
from agentrl.ops.chaos.course import Course, send_signal, wait_until
from agentrl.ops.chaos.observer import RunObserver

COMMIT_S = 120.0  # for an update to be committed, which is then lost
NOTICE_S = 15.0  # for policy servers to find that their rows are lost, and end

log = get_logger()


def lose_commits(observer: RunObserver, _random: random.Random) -> Course:
    """Let nothing reach the disk until an update was committed; then crash the server.

    Postgres answers a commit at once where synchronous_commit is off, and writes it a little later
    by its WAL writer, which is stopped here. Killing that process makes the server begin anew from
    what is on its disk.
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
