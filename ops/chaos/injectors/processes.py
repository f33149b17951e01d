"""Faults: a process is killed, is suspended, or cannot write."""

import random
import resource
import signal

from agentrl.ops.chaos.cluster import send_signal
from agentrl.ops.chaos.fault_course import Course, hold_for
from agentrl.ops.chaos.observer import RunObserver, role_of

LATE_S = 15.0  # beyond dispatch.body_timeout_s


def kill_process(observer: RunObserver, _random: random.Random, name: str) -> Course:
    """SIGKILL; the supervisor starts another."""
    before = observer.mark(name)
    send_signal(before.pid, signal.SIGKILL)
    while observer.pid(name) == before.pid or not observer.is_healthy(name, before):
        yield


def pause_process(observer: RunObserver, random: random.Random, name: str) -> Course:
    """SIGSTOP until its lease is over, then SIGCONT."""
    yield from _pause_for(observer, name, lease_s(observer, name) + random.uniform(0.5, 3.0))


def limit_files(observer: RunObserver, random: random.Random, name: str) -> Course:
    """The process can write to no file for a while: RLIMIT_FSIZE 0, and EFBIG for each write."""
    pid = observer.pid(name) or 0
    try:
        former = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, former[1]))
        yield from hold_for(random.uniform(2.0, 6.0))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, former)
    except ProcessLookupError:  # it ended by itself; another one has its disk again
        yield
    while not observer.is_healthy(name):
        yield


def pause_recorder(observer: RunObserver, _random: random.Random, name: str) -> Course:
    """SIGSTOP for longer than a body may be on its way, then SIGCONT."""
    yield from _pause_for(observer, name, observer.config.dispatch.body_timeout_s + LATE_S)


def _pause_for(observer: RunObserver, name: str, seconds: float) -> Course:
    pid = observer.pid(name) or 0
    send_signal(pid, signal.SIGSTOP)
    try:
        yield from hold_for(seconds)
    finally:
        send_signal(pid, signal.SIGCONT)
    while not observer.is_healthy(name):
        yield


def kill_everything(observer: RunObserver, _random: random.Random) -> Course:
    """SIGKILL to the supervisor and all its children, then the same command again."""
    epoch = observer.identity("trainer")
    observer.cluster.kill_all()
    observer.cluster.up()
    yield
    while observer.identity("trainer") in ("", epoch):
        yield


def lease_s(observer: RunObserver, name: str) -> float:
    """How long the role may be silent before others take over what it holds, or might."""
    config, role = observer.config, role_of(name)
    if role == "policy":
        servers = {server.name: server for server in config.policy_servers()}
        return servers[name.removeprefix("policy-")].lease_s
    if role == "worker":
        return config.worker.lease_s
    return config.dispatch.lease_s
