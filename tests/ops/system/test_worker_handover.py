"""A worker process that SIGTERM ends, as `--scale worker=1` does, hands over its turn in flight."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from policy_servers import serve
from run_transitions import World
from running import ROOT, agentrl, eventually
from takeovers import record

from agentrl import broker
from agentrl.broker.messages import RunEpisode
from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Worker
from agentrl.core.config.sections.policies import Model
from agentrl.core.config.sections.run import Run
from agentrl.core.config.sections.tasks import Task
from agentrl.db.models.processes import PolicyServer
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry.policy_servers import begin_serving, register_server
from agentrl.db.store import open_store
from agentrl.db.transitions import due_episodes
from agentrl.ops.runs.begin import begin
from agentrl.ops.tasks.task_sources import task_sources
from agentrl.serving.engine_api import Request
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.queue.celery_app import CommandSender, celery_app

TURNS, SIZE = 4, 2
HELD = SIZE + 1  # the first policy call that surely follows an action


class CountedPolicy:
    """Counts the tokens that it samples; holds its call number HELD until `release`."""

    def __init__(self) -> None:
        self.tokens = self.calls = 0
        self.episode_id = ""  # whose call is held
        self.held, self.release = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Sequence[int]:
        with self._lock:
            self.calls += 1
            turn = [6 + (self.calls * 7 + n) % 200 for n in range(4)] + sorted(request.stop_ids)[:1]
            self.tokens += len(turn)
            holds = self.calls == HELD
        if holds:
            self.episode_id = request.session.rpartition("/")[0]
            self.held.set()
            assert self.release.wait(300)
        return turn


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        tasks={"dbbench": Task(max_turns=TURNS, options={"style": "compact"})},
        run=Run(home=str(tmp_path / "home")),
        model=Model(path=str(ROOT / "models" / "tiny")),
        worker=Worker(concurrency=SIZE, journal="steps"),
    )


@pytest.fixture
def policy() -> CountedPolicy:
    return CountedPolicy()


@pytest.fixture
def world(config: Config, policy: CountedPolicy) -> Iterator[World]:
    """A run with one group, whose policy the test serves."""
    run_id = begin(config)
    item = task_sources(config)["dbbench"].items("train")[0]
    with closing(open_store(config.store_url())) as store, ExitStack() as stack:
        made = World(store, run_id, "")
        ((first,),) = made.ask("SELECT checkpoint_id FROM checkpoints")
        server = stack.enter_context(serve(ScriptedEngine(policy), {first: ("current", Path())}))
        row = PolicyServer(
            server_id="counted", run_id=run_id, name="policy", engine="local", url=server.url
        )
        with store.write() as session:
            register_server(session, row, lease_s=600.0)
            session.flush()
            begin_serving(session, "counted", "current", session.get_one(Checkpoint, first))
        made.admit(0, size=SIZE)
        made.sql("UPDATE episodes SET item_id = :item", item=item.item_id)
        yield made


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sigterm_costs_no_sampled_token(
    world: World, config: Config, policy: CountedPolicy, tmp_path: Path
) -> None:
    file, logs = tmp_path / "run.toml", [tmp_path / "first", tmp_path / "second"]
    file.write_text(config_loading.to_toml(config))
    sender = CommandSender(celery_app(config.tasks_url(), world.run_id), expires_s=600.0)

    def send_due() -> None:
        due = world.store.transact(
            lambda s: due_episodes.due_to_send(s, world.run_id, claim_timeout_s=600.0)
        )
        for episode_id, fence in due:
            sender(RunEpisode(run_id=world.run_id, episode_id=episode_id, fence=fence))

    def are_finished() -> bool:
        send_due()
        return world.ask("SELECT DISTINCT state FROM episodes") == [("finished",)]

    def said() -> str:
        return "\n".join(log.read_text()[-3000:] for log in logs)

    with ExitStack() as stack:
        stack.callback(sender.close)
        stack.callback(policy.release.set)
        workers = {
            process.pid: process
            for log in logs
            for process in [
                stack.enter_context(agentrl("worker", str(file), environment={}, output=log))
            ]
        }
        live = "SELECT count(*) FROM workers WHERE ended_at IS NULL"
        eventually(lambda: world.ask(live) == [(2,)], within_s=300, text=said)
        send_due()
        eventually(policy.held.is_set, within_s=300, text=said)
        holder = (
            "SELECT w.pid FROM workers w JOIN episodes e USING (worker_id) WHERE episode_id = :e"
        )
        ((pid,),) = world.ask(holder, e=policy.episode_id)
        workers[pid].send_signal(signal.SIGTERM)
        policy.release.set()
        assert workers[pid].wait(60) == 0, said()
        eventually(are_finished, within_s=300, text=said)

    with closing(broker.connect(config.broker_url())) as link:
        record(world, link)
    assert policy.calls == SIZE * TURNS
    assert world.ask("SELECT sum(loss_tokens), max(attempts) FROM episodes") == [(policy.tokens, 1)]
    fences = "SELECT fence FROM episodes WHERE episode_id = :e"
    assert world.ask(fences, e=policy.episode_id) == [(2,)]
    assert "Episode continues from its recorded steps" in said()
    assert world.ask("SELECT * FROM journal") == world.accounting() == []
