"""Fault: the clock of the database host is stepped, as a person or NTP does."""

import random

from agentrl.db.admin import fault_injection
from agentrl.ops.chaos.course import Course, wait_until
from agentrl.ops.chaos.observer import RunObserver

FORWARD_S = (20.0, 300.0)  # beyond every lease and deadline of configs/chaos.toml
BACK_S = (5.0, 40.0)
LAG_S = 10.0  # until every process has read the clock again


def step_clock(observer: RunObserver, random: random.Random) -> Course:
    """Step it once, forward or back. A step back is over when the clock is where it was."""
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
