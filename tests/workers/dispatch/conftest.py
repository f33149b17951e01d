"""A run without anything admitted, for a dispatcher of each test."""

import pytest
from run_transitions import World

from agentrl.db.store import Store


@pytest.fixture
def world(store: Store) -> World:
    return World.begin(store)
