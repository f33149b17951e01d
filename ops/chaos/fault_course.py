"""The course of a fault: a generator that is resumed at every tick until the broken part works
again.

While it yields, the part is broken. When it returns, the part is healthy; the fault is over when
the role that it names has done a unit of work.
"""

import random
import time
from collections.abc import Callable, Generator

from agentrl.ops.chaos.observer import RunObserver

Course = Generator[None, None, None]
Injector = Callable[[RunObserver, random.Random], Course]


def hold_for(seconds: float) -> Course:
    """Yield for so long."""
    yield from wait_until(lambda: False, seconds)


def wait_until(what: Callable[[], bool], within_s: float) -> Course:
    """Yield until it is so, or the time is over."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and not what():
        yield
