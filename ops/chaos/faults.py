"""The faults: each a course of action that is resumed at every tick until what it broke answers.

A course is a generator. What it yields at is broken; where it returns, it answers health again, and
the fault is over once the role it names has done a unit of work.
"""

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from core.config import Config
from core.errors import EnvironmentFailure
from core.logging import get_logger
from db import breaking
from envs.census import Census
from ops.chaos.scene import Scene, role_of
from ops.chaos.stage import BROKER, STORE, TASKS, Command
from ops.hosts import hosts_envs

Course = Generator[None, None, None]
PROOF = {STORE: "any", BROKER: "recorder", TASKS: "worker"}  # whose work needs the service
RIVAL_S = 60.0  # for a trainer that was replaced to leave
OUTAGE_S = 150.0  # longer than the 120 s that a broker was once waited for
LOCK_S = 36.0  # longer than the 30 s that a pool of connections waits
READ_ONLY_S = (1.5, 20.0)
LATE_S = 15.0  # beyond dispatch.body_timeout_s

log = get_logger()


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to break. `role`, `name`: whose unit of work ends it, by which process.

    `alone`: nothing else is broken meanwhile. `weight`: how often it is drawn. `lasts_s`: how long
    it is meant to last, beside which it has the time that every fault has to be over.
    """

    kind: str
    target: str
    course: Callable[[Scene, random.Random], Course]
    role: str
    name: str = ""
    alone: bool = False
    weight: float = 1.0
    lasts_s: float = 0.0


def all_faults(scene: Scene, restarts: dict[str, str]) -> list[Fault]:
    """What can be broken in this run. `restarts`: a command by service, where there is one."""
    faults: list[Fault] = []
    for name in sorted(scene.stage.pids()):
        role = role_of(name)
        faults += [
            Fault("kill", name, _of(killed, name), role, name, weight=4.0),
            Fault("pause", name, _of(paused, name), role, name, weight=1.0),
            Fault("full_disk", name, _of(full_disk, name), role, name, weight=0.7),
        ]
    for service in sorted(scene.stage.proxies):
        faults += [
            Fault("cut", service, _of(cut, service), PROOF[service], weight=2.0),
            Fault("stall", service, _of(stalled, service), PROOF[service], weight=1.0),
            Fault("swallow", service, _of(swallowed, service), PROOF[service], weight=1.0),
            replace(
                Fault("outage", service, _of(gone, service), PROOF[service], weight=0.5),
                alone=True,
                lasts_s=OUTAGE_S,
            ),
        ]
    if breaking.is_postgres(scene.stage.direct.store_url()):
        faults += [
            Fault("read_only", STORE, store_read_only, "any", lasts_s=READ_ONLY_S[1]),
            Fault("lock", STORE, store_locked, "any", alone=True, weight=0.7, lasts_s=LOCK_S),
        ]
    for service, command in restarts.items():
        course = _restarted(service, command)
        faults.append(Fault("restart", service, course, PROOF[service], alone=True, weight=2.0))
    late_s = scene.config.dispatch.body_timeout_s + LATE_S
    faults += [
        replace(
            Fault("late", "recorder", _of(recorder_paused, "recorder"), "recorder", weight=0.5),
            alone=True,
            lasts_s=late_s,
        ),
        Fault("rival", "trainer", rival_trainer, "trainer", alone=True, weight=2.0),
        Fault("rival", "dispatcher", rival_dispatcher, "dispatcher", alone=True, weight=2.0),
        Fault("kill", "everything", killed_all, "trainer", alone=True, weight=1.5),
    ]
    if _uses_containers(scene.config):
        faults.append(Fault("kill", "container", container_killed, "envs", weight=2.0))
    return faults


def killed(scene: Scene, _random: random.Random, name: str) -> Course:
    """SIGKILL; the supervisor starts another."""
    before = scene.mark(name)
    _signal(before.pid, signal.SIGKILL)
    while scene.pid(name) == before.pid or not scene.healthy(name, before):
        yield


def paused(scene: Scene, random: random.Random, name: str) -> Course:
    """SIGSTOP until its lease is over, then SIGCONT."""
    before = scene.mark(name)
    _signal(before.pid, signal.SIGSTOP)
    try:
        yield from _for(lease_s(scene, name) + random.uniform(0.5, 3.0))
    finally:
        _signal(before.pid, signal.SIGCONT)
    while not scene.healthy(name):
        yield


def full_disk(scene: Scene, random: random.Random, name: str) -> Course:
    """The process can write to no file for a while: RLIMIT_FSIZE 0, and EFBIG for each write."""
    pid = scene.pid(name) or 0
    try:
        former = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, former[1]))
        yield from _for(random.uniform(2.0, 6.0))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, former)
    except ProcessLookupError:  # it ended by itself; another one has its disk again
        yield
    while not scene.healthy(name):
        yield


def cut(scene: Scene, _random: random.Random, service: str) -> Course:
    """Every connection to the service is reset; new ones are taken at once."""
    scene.stage.proxies[service].cut()
    yield


def stalled(scene: Scene, random: random.Random, service: str) -> Course:
    """Nothing passes for a while, then every connection is reset."""
    proxy = scene.stage.proxies[service]
    proxy.stall()
    try:
        yield from _for(random.uniform(2.0, 10.0))
    finally:
        proxy.flow()


def swallowed(scene: Scene, _random: random.Random, service: str) -> Course:
    """Connections lead nowhere, without an end: what was sent on them is lost."""
    scene.stage.proxies[service].swallow()
    yield


def gone(scene: Scene, _random: random.Random, service: str) -> Course:
    """The service refuses connections for longer than anybody's patience ever was."""
    proxy = scene.stage.proxies[service]
    proxy.refuse()
    try:
        yield from _for(OUTAGE_S)
    finally:
        proxy.flow()


def store_read_only(scene: Scene, random: random.Random) -> Course:
    """The database takes no write for a while, as one that is no primary any more."""
    with breaking.read_only(scene.stage.direct.store_url()):
        yield from _for(random.uniform(*READ_ONLY_S))
    yield


def store_locked(scene: Scene, _random: random.Random) -> Course:
    """Somebody holds a lock that every writer of episodes waits for."""
    with breaking.episodes_locked(scene.stage.direct.store_url()):
        yield from _for(LOCK_S)
    yield


def recorder_paused(scene: Scene, _random: random.Random, name: str) -> Course:
    """SIGSTOP for longer than a body may be on its way, then SIGCONT."""
    pid = scene.pid(name) or 0
    _signal(pid, signal.SIGSTOP)
    try:
        yield from _for(scene.config.dispatch.body_timeout_s + LATE_S)
    finally:
        _signal(pid, signal.SIGCONT)
    while not scene.healthy(name):
        yield


def container_killed(scene: Scene, random: random.Random) -> Course:
    """SIGKILL to what runs in one container, once there is one."""
    census = Census(scene.stage.name)
    while True:
        found = _containers(scene)
        if found and census.kill(random.choice(found)):
            return
        yield


def killed_all(scene: Scene, _random: random.Random) -> Course:
    """SIGKILL to the supervisor and all its children, then the same command again."""
    epoch = scene.identity("trainer")
    scene.stage.kill_all()
    scene.stage.up()
    yield
    while scene.identity("trainer") in ("", epoch):
        yield


def rival_trainer(scene: Scene, _random: random.Random) -> Course:
    """The trainer stops; a person starts another; the first wakes, and must commit nothing.

    It leaves with the exit code that ends the supervisor; the person starts everything again.
    """
    before = scene.mark("trainer")
    _signal(before.pid, signal.SIGSTOP)
    rival = scene.stage.rival("trainer")
    try:
        began = scene.seen.clock if scene.seen else 0.0
        while scene.worked("trainer", "", began) is None:
            yield
        _signal(before.pid, signal.SIGCONT)
        yield from _until(lambda: _left(scene) or _unfenced(scene), RIVAL_S)
    finally:
        _signal(before.pid, signal.SIGCONT)
        rival.terminate()
        rival.wait(60)
    epoch = scene.identity("trainer")
    if _left(scene):
        scene.stage.up()
        while scene.identity("trainer") in ("", epoch):
            yield


def rival_dispatcher(scene: Scene, _random: random.Random) -> Course:
    """The dispatcher stops past its lease, another takes it over, the first wakes."""
    before = scene.mark("dispatcher")
    _signal(before.pid, signal.SIGSTOP)
    rival = scene.stage.rival("dispatcher")
    try:
        while scene.identity("dispatcher") in ("", before.identity):
            yield
        _signal(before.pid, signal.SIGCONT)
        yield from _for(2.0)
        taken = scene.identity("dispatcher")
    finally:
        _signal(before.pid, signal.SIGCONT)
        rival.terminate()
        rival.wait(60)
    while scene.identity("dispatcher") in ("", taken):
        yield


def lease_s(scene: Scene, name: str) -> float:
    """How long the role may be silent before others take over what it holds, or might."""
    config, role = scene.config, role_of(name)
    if role == "policy":
        servers = {server.name: server for server in config.policy_servers()}
        return servers[name.removeprefix("policy-")].lease_s
    if role == "worker":
        return config.worker.lease_s
    return config.dispatch.lease_s


def _restarted(service: str, command: str) -> Callable[[Scene, random.Random], Course]:
    def course(scene: Scene, _random: random.Random) -> Course:
        """A user's command restarts the service."""
        restart = Command(command, scene.stage.home / f"restart-{service}.log")
        while not (restart.done() and _service_answers(scene, service)):
            yield

    return course


def _left(scene: Scene) -> bool:
    return scene.stage.exit_code() is not None


def _unfenced(scene: Scene) -> bool:
    """A trainer that was replaced has committed all the same: there is no use in waiting on."""
    return scene.seen is not None and scene.seen.committed_epoch < scene.seen.epoch


def _service_answers(scene: Scene, service: str) -> bool:
    return scene.seen is not None if service == STORE else scene.broker_answers()


def _of(
    course: Callable[[Scene, random.Random, str], Course], target: str
) -> Callable[[Scene, random.Random], Course]:
    return lambda scene, source: course(scene, source, target)


def _uses_containers(config: Config) -> bool:
    """Whether an env server of ours plays episodes in containers."""
    contained = any(
        name == "os" or task.options.get("container") for name, task in config.tasks.items()
    )
    return contained and hosts_envs(config)


def _containers(scene: Scene) -> list[str]:
    try:
        return Census(scene.stage.name).containers()
    except EnvironmentFailure as error:
        log.warning("containers not counted", error=str(error))
        return []


def _signal(pid: int, number: signal.Signals) -> None:
    """To a process that may have ended."""
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _for(seconds: float) -> Course:
    yield from _until(lambda: False, seconds)


def _until(what: Callable[[], bool], within_s: float) -> Course:
    """Yield until it is so, or the time is over."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and not what():
        yield
