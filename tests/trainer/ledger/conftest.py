"""A run, and the ledgers of its trainers."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from backends import embedded_broker
from ledgers import LedgerFactory
from run_transitions import World

from agentrl.broker.api import Broker, Consumer


@pytest.fixture
def link(world: World, tmp_path: Path) -> Iterator[Broker]:
    with embedded_broker(tmp_path, world.run_id) as opened:
        yield opened


@pytest.fixture
def events(world: World, link: Broker) -> Iterator[Consumer]:
    with closing(link.subscriber(world.run_id)) as subscriber:
        yield subscriber


@pytest.fixture
def ledgers(world: World, link: Broker, tmp_path: Path) -> LedgerFactory:
    return LedgerFactory(world, link.publisher(), tmp_path)
