"""Faults: Postgres is read-only, or a lock is held in it."""

import random

from agentrl.db.admin import fault_injection
from agentrl.ops.chaos.course import Course, hold_for
from agentrl.ops.chaos.observer import RunObserver

LOCK_S = 36.0  # longer than the 30 s that a pool of connections waits
READ_ONLY_S = (1.5, 20.0)


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
