"""Fault: all connections of the database server are in use."""

import random

from agentrl.db.admin import fault_injection
from agentrl.ops.chaos.course import Course, hold_for
from agentrl.ops.chaos.observer import RunObserver

EXHAUSTED_S = (5.0, 40.0)  # at most longer than the 30 s that a process's own pool waits


def exhaust(observer: RunObserver, random: random.Random) -> Course:
    """Take the server's connections, those of the run as well, and let them go after a while."""
    with fault_injection.take_connections(observer.cluster.direct.store_url()) as take:
        for _ in hold_for(random.uniform(*EXHAUSTED_S)):
            take()
            yield
    yield
