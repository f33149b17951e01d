"""Faults: connections to a service are cut, stalled, never answered or lost, at its proxy."""

import random

from agentrl.ops.chaos.fault_course import Course, hold_for
from agentrl.ops.chaos.observer import RunObserver
from agentrl.ops.chaos.packets import drop_packets

DROPPED_S = (20.0, 60.0)  # longer than an unacknowledged packet keeps a connection
OUTAGE_S = 150.0  # longer than the 120 s that a broker was once waited for


def cut(observer: RunObserver, _random: random.Random, service: str) -> Course:
    """Every connection to the service is reset; new ones are taken at once."""
    observer.cluster.proxies[service].cut()
    yield


def stall(observer: RunObserver, random: random.Random, service: str) -> Course:
    """Nothing passes for a while, then every connection is reset."""
    proxy = observer.cluster.proxies[service]
    proxy.stall()
    try:
        yield from hold_for(random.uniform(2.0, 10.0))
    finally:
        proxy.flow()


def swallow(observer: RunObserver, _random: random.Random, service: str) -> Course:
    """Connections lead nowhere, without an end: what was sent on them is lost."""
    observer.cluster.proxies[service].swallow()
    yield


def drop(observer: RunObserver, random: random.Random, service: str) -> Course:
    """Every packet to and from the service is lost; old and new connections time out."""
    with drop_packets(observer.cluster.proxies[service].port):
        yield from hold_for(random.uniform(*DROPPED_S))


def refuse(observer: RunObserver, _random: random.Random, service: str) -> Course:
    """The service refuses connections for longer than anybody's patience ever was."""
    proxy = observer.cluster.proxies[service]
    proxy.refuse()
    try:
        yield from hold_for(OUTAGE_S)
    finally:
        proxy.flow()
