"""The interface of `agentrl envs check`: figures of a task with their expected values.

The own figures of a task are in its module `check`:

    figures(settings) -> Iterator[Figure]        in the order of the table, each when it is known
    baselines(item, seed) -> Mapping[str, Expert]   `random` and `constant` policies of an item
    PEERS = {name: what it is}      of `--peer name=value`, beside those below
    SHARED = {origin: {"one and other": count}}     contents its splits share, as published
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

PEERS = {
    "textworld": "a Python that has it",
    "mariadb": "a server's URL",
    "docker": "an engine's address",
    "image": "of sandboxes",
    "lucene": "the jar of Anserini",
    "scale": "products of a shop that is built",
    "catalogue": "the folder of a shop",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the check. `ok`: None if it could not be measured here; `value` then says why."""

    name: str
    value: str
    wanted: str = ""
    ok: bool | None = True


@dataclass(frozen=True, slots=True)
class Settings:
    """How to check. `data`: folder, empty for AGENTRL_DATA; `limit`: items a figure, 0 for all.

    `peers`: what to measure against, by name: PEERS, and those that a task's `check` declares.
    """

    data: str = ""
    limit: int = 0
    seed: int = 0
    peers: Mapping[str, str] = field(default_factory=dict)
