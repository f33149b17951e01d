"""The checks of `agentrl envs check` for the gateway, whose items and programs are the user's."""

from collections.abc import Iterator

from agentrl.envs.tasks.check import Figure, Settings

GENERATED = False  # nothing is drawn here, so there is no expert, no chance and no split to measure


def figures(_settings: Settings) -> Iterator[Figure]:
    yield Figure("items", "the user's own: agentrl envs play gateway -o items=…", ok=None)
