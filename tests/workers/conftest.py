from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from run_transitions import World
from takeovers import Script, first_command, playing

from agentrl import broker
from agentrl.broker.api import Broker
from agentrl.broker.messages import RunEpisode
from agentrl.db.store import Store
from agentrl.ops.warmstart import tokenizer
from agentrl.workers.conversation.template import ChatTemplate


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of 300 tokens and its template, without weights."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer.save(tokenizer.train(["look at the mug on the desk 1"], 300), folder)
    return folder


@pytest.fixture(scope="session")
def template(model_dir: Path) -> ChatTemplate:
    return ChatTemplate.load(model_dir)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def world(store: Store, script: Script) -> Iterator[World]:
    with playing(store, script) as begun:
        yield begun


@pytest.fixture
def link(world: World, tmp_path: Path) -> Iterator[Broker]:
    with closing(broker.connect(f"sqlite:///{tmp_path / 'queue.db'}")) as opened:
        opened.declare_run(world.run_id)
        yield opened


@pytest.fixture
def command(world: World) -> RunEpisode:
    return first_command(world)
