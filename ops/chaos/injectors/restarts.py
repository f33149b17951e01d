"""Fault: a service is restarted with a command of the user."""

import random

from agentrl.ops.chaos.cluster import STORE, Command
from agentrl.ops.chaos.fault_course import Course
from agentrl.ops.chaos.observer import RunObserver


def restart_service(
    observer: RunObserver, _random: random.Random, service: str, command: str
) -> Course:
    """Run the command, and wait until the service answers."""
    running = Command(command, observer.cluster.home / f"restart-{service}.log")
    while not (running.done() and service_answers(observer, service)):
        yield


def service_answers(observer: RunObserver, service: str) -> bool:
    return observer.seen is not None if service == STORE else observer.broker_answers()
