"""Fault: a second trainer or dispatcher is started beside the first."""

import random
import signal

from agentrl.ops.chaos.cluster import send_signal
from agentrl.ops.chaos.fault_course import Course, hold_for, wait_until
from agentrl.ops.chaos.observer import RunObserver

RIVAL_S = 180.0  # for a trainer that was replaced to leave, and its supervisor with it


def start_rival_trainer(observer: RunObserver, _random: random.Random) -> Course:
    """The trainer stops; a person starts another; the first wakes, and must commit nothing.

    It leaves with the exit code that ends the supervisor; the person starts everything again.
    """
    before = observer.mark("trainer")
    send_signal(before.pid, signal.SIGSTOP)
    rival = observer.cluster.start_rival("trainer")
    try:
        while observer.seen is None or observer.seen.committed_epoch <= int(before.identity):
            yield  # a commit that the first had sent when it stopped is not the rival's work
        send_signal(before.pid, signal.SIGCONT)
        yield from wait_until(lambda: _has_left(observer) or _is_unfenced(observer), RIVAL_S)
    finally:
        send_signal(before.pid, signal.SIGCONT)
        rival.terminate()
        rival.wait(60)
    epoch = observer.identity("trainer")
    if _has_left(observer):
        observer.cluster.up()
        while observer.identity("trainer") in ("", epoch):
            yield


def start_rival_dispatcher(observer: RunObserver, _random: random.Random) -> Course:
    """The dispatcher stops past its lease, another takes it over, the first wakes."""
    before = observer.mark("dispatcher")
    send_signal(before.pid, signal.SIGSTOP)
    rival = observer.cluster.start_rival("dispatcher")
    try:
        while observer.identity("dispatcher") in ("", before.identity):
            yield
        send_signal(before.pid, signal.SIGCONT)
        yield from hold_for(2.0)
        successor = observer.identity("dispatcher")
    finally:
        send_signal(before.pid, signal.SIGCONT)
        rival.terminate()
        rival.wait(60)
    while observer.identity("dispatcher") in ("", successor):
        yield


def _has_left(observer: RunObserver) -> bool:
    return observer.cluster.exit_code() is not None


def _is_unfenced(observer: RunObserver) -> bool:
    """A trainer that was replaced has committed all the same: there is no use in waiting on."""
    return observer.seen is not None and observer.seen.committed_epoch < observer.seen.epoch
