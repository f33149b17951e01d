import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from backends import embedded_broker
from policy_servers import FixedPool, ScriptedEnvironment, ScriptedSource, serve, won
from run_transitions import World
from scripted_episodes import NOWHERE, VOCABULARY, RecordingScript
from takeovers import Script, first_command, playing
from worker_runs import Begin, Checking, scripted_worker

from agentrl.broker.api import Broker
from agentrl.broker.messages import RunEpisode
from agentrl.core.config.sections.episodes import Sampling
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.store import Store
from agentrl.envs.contract import Environment, TaskSource
from agentrl.ops.warmstart import tokenizer
from agentrl.serving.engine_api import ModelLimits
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.episode_context import EpisodeContext
from agentrl.workers.policies.client import PolicyClient
from agentrl.workers.worker import EpisodeWorker


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
    with embedded_broker(tmp_path, world.run_id) as opened:
        yield opened


@pytest.fixture
def command(world: World) -> RunEpisode:
    return first_command(world)


@pytest.fixture(scope="module")
def recording() -> RecordingScript:
    return RecordingScript()


@pytest.fixture(scope="module")
def pool(recording: RecordingScript) -> Iterator[FixedPool]:
    """Two tracks on one server."""
    engine = ScriptedEngine(recording, limits=ModelLimits(VOCABULARY, 4096))
    tracks = {"c0": ("lagged(4)", NOWHERE), "c1": ("current", NOWHERE)}
    with serve(engine, tracks) as server:
        yield FixedPool(
            LivePolicy("s", server.url, "lagged(4)", "c0", 0),
            LivePolicy("s", server.url, "current", "c1", 1),
        )


@pytest.fixture
def context(template: ChatTemplate) -> Iterator[EpisodeContext]:
    with closing(PolicyClient()) as client:
        yield EpisodeContext(
            template=template,
            style="plain",
            stop_ids=sorted(template.stop_ids),
            sampling=Sampling(strategy="uniform", max_step_tokens=24, max_tokens=400),
            client=client,
            clock=time.time,
            stop=threading.Event(),
        )


@pytest.fixture
def scripted_world(store: Store) -> Iterator[World]:
    """A run whose only policies are served by a scripted engine."""
    begun = World.begin(store)
    checkpoint = {f"{begun.run_id}-v0": ("current", NOWHERE)}
    with serve(ScriptedEngine(limits=ModelLimits(VOCABULARY, 4096)), checkpoint) as server:
        begun.sql("UPDATE policy_servers SET url = :url", url=server.url)
        yield begun


@pytest.fixture
def publisher(world: World, link: Broker) -> Checking:
    return Checking(link.publisher(), world)


@pytest.fixture
def begin(world: World, publisher: Checking, model_dir: Path) -> Iterator[Begin]:
    """Start a worker whose every environment is the one given, or a source's own."""
    workers = []

    def start(
        env: Environment | None = None, source: TaskSource | None = None, wait_s: float = 60.0
    ) -> EpisodeWorker:
        chosen = source or ScriptedSource(
            lambda _item: env or ScriptedEnvironment(["and?"] * 2, won())
        )
        worker = scripted_worker(model_dir, world, publisher, chosen, wait_s)
        workers.append(worker)
        worker.start()
        return worker

    yield start
    for worker in workers:
        worker.close()
