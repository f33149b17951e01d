"""Faults: RabbitMQ raises a disk alarm, or accepts only small messages."""

import random
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles

from agentrl.core.errors import BrokerError, StoreError
from agentrl.db.queries import liveness
from agentrl.ops.chaos.cluster import BROKER, TASKS
from agentrl.ops.chaos.fault_course import Course, hold_for
from agentrl.ops.chaos.observer import RunObserver

ANSWER_S = 180.0  # for rabbitmqctl, which starts a machine of its own
CONTROL_S = 120.0  # for the three that a fault needs, on a busy machine
ALARM_S = (5.0, 90.0)  # at most longer than the 60 s that a publisher once waited
SMALL_S = (10.0, 30.0)
NEVER_FREE = 10**18  # bytes: no disk has so many
COMMAND_BYTES = 4096  # RunEpisode and every event are smaller


@dataclass(frozen=True, slots=True)
class Rabbitmqctl:
    """`command`: the words of a shell that run rabbitmqctl where the broker is."""

    command: str

    def eval(self, expression: str) -> str:
        """What an Erlang expression is on the broker. Raises BrokerError."""
        try:
            done = subprocess.run(
                [*shlex.split(self.command), "eval", expression],
                capture_output=True,
                check=True,
                timeout=ANSWER_S,
                text=True,
            )
        except subprocess.CalledProcessError as error:
            lines = (error.stderr or error.stdout).strip().splitlines()
            raise BrokerError(f"{self.command}: {lines[-1] if lines else error}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BrokerError(f"{self.command}: {error}") from error
        return done.stdout.strip()

    @contextmanager
    def raise_alarm(self) -> Iterator[None]:
        """The broker believes that its disk is short, and takes nothing from publishers."""
        before = int(self.eval("rabbit_disk_monitor:get_disk_free_limit()."))
        self.eval(f"rabbit_disk_monitor:set_disk_free_limit({NEVER_FREE}).")
        try:
            yield
        finally:
            self.eval(f"rabbit_disk_monitor:set_disk_free_limit({before}).")

    @contextmanager
    def limit_size(self, size: int) -> Iterator[None]:
        """Channels that open from now on refuse messages of more bytes than that."""
        before = int(self.eval("application:get_env(rabbit, max_message_size, 134217728)."))
        self.eval(f"application:set_env(rabbit, max_message_size, {size}).")
        try:
            yield
        finally:
            self.eval(f"application:set_env(rabbit, max_message_size, {before}).")

    def folder(self) -> str:
        """Where the broker keeps its queues."""
        return self.eval("rabbit_mnesia:dir().").strip('"')


def raise_disk_alarm(
    observer: RunObserver, random: random.Random, rabbitmqctl: Rabbitmqctl
) -> Course:
    """Publishers wait, consumers go on."""
    with rabbitmqctl.raise_alarm():
        yield from hold_for(random.uniform(*ALARM_S))
    while not observer.broker_answers():
        yield


def limit_messages(
    observer: RunObserver, random: random.Random, rabbitmqctl: Rabbitmqctl
) -> Course:
    """The largest quarter of bodies is refused: their attempts fail, no others."""
    while (sizes := _body_sizes(observer)) is None:
        yield
    limit = round(quantiles(sizes, n=4)[-1]) if len(sizes) > 1 else 0
    with rabbitmqctl.limit_size(max(COMMAND_BYTES, limit)):
        _reopen(observer)
        yield from hold_for(random.uniform(*SMALL_S))
    _reopen(observer)
    yield


def _body_sizes(observer: RunObserver) -> list[int] | None:
    """Bytes of the run's bodies; None while the store is away."""
    try:
        return observer.store.ask(
            lambda session: liveness.body_sizes(session, observer.run_id), patience_s=0.0
        )
    except StoreError:
        return None


def _reopen(observer: RunObserver) -> None:
    """Every channel anew, which reads the limit when it opens."""
    for service in (BROKER, TASKS):
        if service in observer.cluster.proxies:
            observer.cluster.proxies[service].cut()
