"""The clock of the database's host is stepped, as a person does, or NTP after a long absence."""

import random

from db import breaking
from ops.chaos.course import Course, wait_until
from ops.chaos.scene import Scene

FORWARD_S = (20.0, 300.0)  # beyond every lease and deadline of configs/chaos.toml
BACK_S = (5.0, 40.0)


def step_clock(scene: Scene, random: random.Random) -> Course:
    """Step it once, forward or back. A step back is over when the clock is where it was."""
    url, before = scene.stage.direct.store_url(), scene.seen.clock if scene.seen else 0.0
    if random.random() < 0.5:
        breaking.step_clock(url, random.uniform(*FORWARD_S))
        yield
        return
    back_s = random.uniform(*BACK_S)
    breaking.step_clock(url, -back_s)
    yield
    yield from wait_until(lambda: scene.seen is not None and scene.seen.clock > before, 4 * back_s)
