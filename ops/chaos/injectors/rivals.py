"""Fault: a second trainer or dispatcher is started beside the first."""

import random
import signal

from agentrl.ops.chaos.course import Course, hold_for, send_signal, wait_until
from agentrl.ops.chaos.observer import Scene

RIVAL_S = 180.0  # for a trainer that was replaced to leave, and its supervisor with it


def start_rival_trainer(scene: Scene, _random: random.Random) -> Course:
    """The trainer stops; a person starts another; the first wakes, and must commit nothing.

    It leaves with the exit code that ends the supervisor; the person starts everything again.
    """
    before = scene.mark("trainer")
    send_signal(before.pid, signal.SIGSTOP)
    rival = scene.stage.rival("trainer")
    try:
        began = scene.seen.clock if scene.seen else 0.0
        while scene.worked("trainer", "", began) is None:
            yield
        send_signal(before.pid, signal.SIGCONT)
        yield from wait_until(lambda: _left(scene) or _unfenced(scene), RIVAL_S)
    finally:
        send_signal(before.pid, signal.SIGCONT)
        rival.terminate()
        rival.wait(60)
    epoch = scene.identity("trainer")
    if _left(scene):
        scene.stage.up()
        while scene.identity("trainer") in ("", epoch):
            yield


def start_rival_dispatcher(scene: Scene, _random: random.Random) -> Course:
    """The dispatcher stops past its lease, another takes it over, the first wakes."""
    before = scene.mark("dispatcher")
    send_signal(before.pid, signal.SIGSTOP)
    rival = scene.stage.rival("dispatcher")
    try:
        while scene.identity("dispatcher") in ("", before.identity):
            yield
        send_signal(before.pid, signal.SIGCONT)
        yield from hold_for(2.0)
        taken = scene.identity("dispatcher")
    finally:
        send_signal(before.pid, signal.SIGCONT)
        rival.terminate()
        rival.wait(60)
    while scene.identity("dispatcher") in ("", taken):
        yield


def _left(scene: Scene) -> bool:
    return scene.stage.exit_code() is not None


def _unfenced(scene: Scene) -> bool:
    """A trainer that was replaced has committed all the same: there is no use in waiting on."""
    return scene.seen is not None and scene.seen.committed_epoch < scene.seen.epoch
