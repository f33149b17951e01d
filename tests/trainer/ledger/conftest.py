"""A run, and the ledgers of its trainers."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import LedgerFactory
from run_transitions import World

from agentrl import broker
from agentrl.broker.api import Broker, Consumer
from agentrl.db.store import Store


@pytest.fixture
def world(store: Store) -> World:
    return World.begin(store)


@pytest.fixture
def link(world: World, tmp_path: Path) -> Iterator[Broker]:
    with closing(broker.connect(f"sqlite:///{tmp_path / 'queue.db'}")) as opened:
        opened.declare_run(world.run_id)
        yield opened


@pytest.fixture
def events(world: World, link: Broker) -> Iterator[Consumer]:
    with closing(link.subscriber(world.run_id)) as subscriber:
        yield subscriber


@pytest.fixture
def ledgers(world: World, link: Broker, tmp_path: Path) -> LedgerFactory:
    return LedgerFactory(world, link.publisher(), tmp_path)
