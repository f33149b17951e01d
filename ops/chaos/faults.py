"""The table of faults: what each breaks, how often, and which role must recover.

Each fault is a function in `ops/chaos/injectors`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agentrl.db.admin import fault_injection
from agentrl.ops.chaos.cluster import BROKER, STORE, TASKS
from agentrl.ops.chaos.fault_course import Injector
from agentrl.ops.chaos.injectors import (
    connections,
    containers,
    disks,
    postgres,
    processes,
    rabbitmq,
    restarts,
    rival_processes,
)
from agentrl.ops.chaos.injectors.rabbitmq import Rabbitmqctl
from agentrl.ops.chaos.observer import RunObserver, role_of
from agentrl.ops.chaos.packets import can_drop

PROOF = {STORE: "any", BROKER: "recorder", TASKS: "worker"}  # whose work needs the service


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to break. `role`, `name`: whose unit of work ends it, by which process.

    `alone`: nothing else is broken meanwhile. `weight`: how often it is drawn. `lasts_s`: how long
    it is meant to last, beside which it has the time that every fault has to be over.
    """

    kind: str
    target: str
    course: Injector
    role: str
    name: str = ""
    alone: bool = False
    weight: float = 1.0
    lasts_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Means:
    """What a person gives to break services with: shell commands.

    `restarts`: by service; `rabbitmqctl`: runs it where the broker is. What is missing leaves its
    faults out.
    """

    restarts: Mapping[str, str] = field(default_factory=dict)
    rabbitmqctl: str = ""


OF_ALL = [
    Fault(
        "rival",
        "trainer",
        rival_processes.start_rival_trainer,
        "trainer",
        alone=True,
        weight=2.0,
        lasts_s=rival_processes.RIVAL_S,
    ),
    Fault(
        "rival",
        "dispatcher",
        rival_processes.start_rival_dispatcher,
        "dispatcher",
        alone=True,
        weight=2.0,
    ),
    Fault("kill", "everything", processes.kill_everything, "trainer", alone=True, weight=1.5),
]


def all_faults(observer: RunObserver, means: Means) -> list[Fault]:
    """What can be broken in this run."""
    url = observer.cluster.direct.store_url()
    faults = [*_of_processes(observer), *_of_connections(observer), *OF_ALL]
    faults += [
        Fault(
            "restart",
            service,
            partial(restarts.restart_service, service=service, command=command),
            PROOF[service],
            alone=True,
            weight=2.0,
        )
        for service, command in means.restarts.items()
    ]
    if fault_injection.is_postgres(url):
        faults += _of_postgres(observer, url, means)
    if means.rabbitmqctl:
        faults += _of_rabbitmq(observer, means)
    return faults


def _of_processes(observer: RunObserver) -> Iterator[Fault]:
    for name in sorted(observer.cluster.pids()):
        role = role_of(name)
        for kind, injector, weight in (
            ("kill", processes.kill_process, 4.0),
            ("pause", processes.pause_process, 1.0),
            ("full_disk", processes.limit_files, 0.7),
        ):
            yield Fault(kind, name, partial(injector, name=name), role, name, weight=weight)
    late_s = observer.config.dispatch.body_timeout_s + processes.LATE_S
    late = partial(processes.pause_recorder, name="recorder")
    yield Fault("late", "recorder", late, "recorder", alone=True, weight=0.5, lasts_s=late_s)
    yield Fault(
        "no_snapshot",
        "trainer",
        partial(disks.refuse_snapshots, name="trainer"),
        "trainer",
        weight=0.7,
        lasts_s=disks.SNAPSHOTS_S,
    )
    if containers.uses_containers(observer.config):
        yield Fault("kill", "container", containers.kill_container, "envs", weight=2.0)


def _of_connections(observer: RunObserver) -> Iterator[Fault]:
    for service in sorted(observer.cluster.proxies):
        for kind, injector, weight in (
            ("cut", connections.cut, 2.0),
            ("stall", connections.stall, 1.0),
            ("swallow", connections.swallow, 1.0),
        ):
            course = partial(injector, service=service)
            yield Fault(kind, service, course, PROOF[service], weight=weight)
        if can_drop():
            course = partial(connections.drop, service=service)
            lasts_s = connections.DROPPED_S[1]
            yield Fault("drop", service, course, PROOF[service], weight=0.7, lasts_s=lasts_s)
        outage, lasts_s = partial(connections.refuse, service=service), connections.OUTAGE_S
        role = PROOF[service]
        yield Fault("outage", service, outage, role, alone=True, weight=0.5, lasts_s=lasts_s)


def _of_postgres(observer: RunObserver, url: str, means: Means) -> Iterator[Fault]:
    for kind, injector, alone, weight, lasts_s in (
        ("read_only", postgres.refuse_writes, False, 1.0, postgres.READ_ONLY_S[1]),
        ("lock", postgres.lock_episodes, True, 0.7, postgres.LOCK_S),
        ("exhaust", postgres.exhaust, False, 0.7, postgres.EXHAUSTED_S[1]),
        ("clock", postgres.step_clock, False, 1.0, postgres.BACK_S[1]),
    ):
        yield Fault(kind, STORE, injector, "any", alone=alone, weight=weight, lasts_s=lasts_s)
    server = fault_injection.server(url)
    if server is None:
        return
    if postgres.is_local(server.walwriter):
        lose, lasts_s = postgres.lose_commits, postgres.COMMIT_S
        yield Fault("lose_commit", STORE, lose, "trainer", alone=True, weight=0.7, lasts_s=lasts_s)
    yield from _of_disk(observer, STORE, server.folder, means)


def _of_rabbitmq(observer: RunObserver, means: Means) -> Iterator[Fault]:
    ctl = Rabbitmqctl(means.rabbitmqctl)
    folder = ctl.folder()
    for kind, injector, lasts_s in (
        ("alarm", rabbitmq.raise_disk_alarm, rabbitmq.ALARM_S[1] + rabbitmq.CONTROL_S),
        ("small_messages", rabbitmq.limit_messages, rabbitmq.SMALL_S[1] + rabbitmq.CONTROL_S),
    ):
        course = partial(injector, rabbitmqctl=ctl)
        yield Fault(kind, BROKER, course, PROOF[BROKER], weight=0.7, lasts_s=lasts_s)
    yield from _of_disk(observer, BROKER, folder, means)


def _of_disk(observer: RunObserver, service: str, folder: str, means: Means) -> Iterator[Fault]:
    """Of a service that keeps what it has on a small disk of its own, on this machine."""
    parent, restart = Path(folder).parent, means.restarts.get(service, "")
    if disks.has_own_disk(parent, observer.cluster.home) and (restart or service == STORE):
        course = partial(disks.fill_disk, service=service, folder=parent, restart=restart)
        lasts_s = disks.FULL_S[1] + disks.ANSWER_S
        yield Fault("full_disk", service, course, PROOF[service], weight=0.7, lasts_s=lasts_s)
