"""Fault: a service is restarted with a command of the user."""

import random

from agentrl.ops.chaos.cluster import STORE, Command
from agentrl.ops.chaos.course import Course
from agentrl.ops.chaos.observer import Scene


def restart_service(scene: Scene, _random: random.Random, service: str, command: str) -> Course:
    """Run the command, and wait until the service answers."""
    running = Command(command, scene.stage.home / f"restart-{service}.log")
    while not (running.done() and service_answers(scene, service)):
        yield


def service_answers(scene: Scene, service: str) -> bool:
    return scene.seen is not None if service == STORE else scene.broker_answers()
