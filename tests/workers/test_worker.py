"""A worker over a real store, a real queue file and a scripted policy behind HTTP."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from policy_servers import ScriptedEnvironment, ScriptedSource, serve, won
from run_transitions import World
from running import eventually
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from store_outage import Outage, forbid_waiting, lose_next_answer
from structlog.testing import capture_logs

from agentrl.broker.api import Broker, Publisher, Waiting
from agentrl.broker.messages import EpisodeFinished, Message, RunEpisode
from agentrl.broker.topology import recorder_queue
from agentrl.core.config.config import Config
from agentrl.core.config.sections import Dispatch, Model, Task
from agentrl.core.config.sections import Worker as WorkerConfig
from agentrl.core.errors import EnvironmentFailure
from agentrl.core.telemetry import tracing
from agentrl.core.telemetry.tracing import Sink, Span
from agentrl.core.types import EpisodeState, GroupState, Reason, Status
from agentrl.db.models import Worker
from agentrl.db.store import Store
from agentrl.db.transitions import episodes
from agentrl.envs import registry
from agentrl.envs.contract import Environment, Item, Outcome, TaskSource, ToolCall
from agentrl.ops.processes.worker import worker_config
from agentrl.serving.engine_api import ModelLimits
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.episode_context import Clock
from agentrl.workers.leaving import FLUSH_S, leave_in_time
from agentrl.workers.recorder import record_bodies
from agentrl.workers.worker import EpisodeWorker

Begin = Callable[..., EpisodeWorker]
MANY = 2


class Checking:
    """A publisher that notes what the row said at the moment of publishing, and may be away."""

    def __init__(self, inner: Publisher, world: World) -> None:
        self.seen: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self._inner, self._world = inner, world
        self.back = threading.Event()
        self.back.set()

    def publish(
        self, exchange: str, run_id: str, message: Message, *, waiting: Waiting | None = None
    ) -> None:
        assert isinstance(message, EpisodeFinished)
        self.seen.append(self._world.episode(message.trajectory.episode_id).state)
        self.meanwhile()
        while not self.back.wait(0.02):
            assert waiting is not None
            waiting(1.0)
        self._inner.publish(exchange, run_id, message, waiting=waiting)

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def world(store: Store) -> Iterator[World]:
    """A run whose only policies are served by a scripted engine."""
    begun = World.begin(store)
    checkpoint = {f"{begun.run_id}-v0": ("current", Path())}
    with serve(ScriptedEngine(limits=ModelLimits(300, 4096)), checkpoint) as server:
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
        config = Config(
            tasks={"dbbench": Task(max_turns=4)},
            model=Model(path=str(model_dir)),
            worker=WorkerConfig(concurrency=4, beat_s=0.1, lease_s=5.0, policy_wait_s=wait_s),
            dispatch=Dispatch(max_attempts=MANY),
        )
        chosen = source or ScriptedSource(
            lambda _item: env or ScriptedEnvironment(["and?"] * 2, won())
        )
        worker = EpisodeWorker(
            worker_config(config), world.run_id, world.store, publisher, {"dbbench": chosen}
        )
        workers.append(worker)
        worker.start()
        return worker

    yield start
    for worker in workers:
        worker.close()


def _admit(world: World, item_ids: Sequence[str] = ("train-item-0",)) -> list[RunEpisode]:
    """One group of two for each item; its commands."""
    ids = world.admit(*range(len(item_ids)), size=2)
    for group_id, item_id in zip(ids, item_ids, strict=True):
        world.sql("UPDATE episodes SET item_id = :i WHERE group_id = :g", i=item_id, g=group_id)
    due = world.store.transact(
        lambda s: episodes.due_to_send(s, world.run_id, claim_timeout_s=60.0)
    )
    return [RunEpisode(run_id=world.run_id, episode_id=e, fence=f) for e, f in due]


def test_a_body_is_published_before_its_row_moves(
    world: World, begin: Begin, publisher: Checking, link: Broker
) -> None:
    worker, commands = begin(), _admit(world)
    for command in commands:
        worker.run(command)
    assert publisher.seen == [EpisodeState.RUNNING] * 2
    rows = [world.episode(command.episode_id) for command in commands]
    assert {(row.state, row.status, row.reward) for row in rows} == {
        (EpisodeState.FINISHED, Status.COMPLETED, 1.0)
    }
    assert world.group(rows[0].group_id).state == GroupState.READY
    with closing(link.consumer(recorder_queue(world.run_id))) as consumer:
        record_bodies(world.store, consumer, world.run_id, threading.Event(), drain=True)
    assert world.accounting() == []
    assert world.ask("SELECT * FROM unserved_steps") == []
    assert world.ask("SELECT COUNT(*) FROM steps") == [(6,)]


def test_episodes_of_a_real_task_run_to_a_terminal_row(world: World, begin: Begin) -> None:
    source = registry.source("dbbench", {"style": "compact", "difficulty": "easy"})
    worker = begin(source=source)
    for command in _admit(world, [item.item_id for item in source.items("train")[:3]]):
        worker.run(command)
    states = world.ask("SELECT DISTINCT state FROM episodes")
    assert states == [(EpisodeState.FINISHED,)]
    assert world.ask("SELECT COUNT(*) FROM episodes WHERE turns BETWEEN 1 AND 4") == [(6,)]


def test_an_episode_has_no_more_turns_than_its_groups_horizon(world: World, begin: Begin) -> None:
    first, second = _admit(world)
    worker = begin()
    worker.run(first)
    world.sql("UPDATE groups SET horizon = 2")
    worker.run(second)
    found = [world.episode(command.episode_id) for command in (first, second)]
    assert [row.turns for row in found] == [3, 2]
    assert [row.status for row in found] == [Status.COMPLETED, Status.TASK_LIMIT]


def test_a_command_twice_runs_once(world: World, begin: Begin, publisher: Checking) -> None:
    worker, (command, _) = begin(), _admit(world)
    worker.run(command)
    worker.run(command)
    other = RunEpisode(run_id="another", episode_id=command.episode_id, fence=1)
    worker.run(other)
    assert len(publisher.seen) == 1


def test_a_claim_that_lapsed_meanwhile_changes_nothing(
    world: World, begin: Begin, publisher: Checking
) -> None:
    worker, (command, _) = begin(), _admit(world)
    publisher.meanwhile = lambda: world.sql(
        "UPDATE episodes SET fence = 2, state = 'queued' WHERE episode_id = :e",
        e=command.episode_id,
    )
    worker.run(command)
    row = world.episode(command.episode_id)
    assert (row.state, row.fence, row.reward) == (EpisodeState.QUEUED, 2, None)


def test_infrastructure_errors_are_retried_and_never_a_reward(
    world: World, begin: Begin, publisher: Checking
) -> None:
    broken = ScriptedEnvironment([], EnvironmentFailure("broke"))
    worker, (command, _) = begin(broken), _admit(world)
    for fence in range(1, MANY + 1):
        worker.run(RunEpisode(run_id=world.run_id, episode_id=command.episode_id, fence=fence))
    row = world.episode(command.episode_id)
    assert (row.state, row.reason, row.status) == (
        EpisodeState.FAILED,
        Reason.ENV_ERROR,
        Status.ENV_ERROR,
    )
    assert (row.reward, row.body_sha256, publisher.seen) == (None, None, [])
    assert broken.closed == MANY


def test_an_environment_that_fails_to_close_costs_no_episode(
    world: World, begin: Begin, publisher: Checking
) -> None:
    class Leaking(ScriptedEnvironment):
        def close(self) -> None:
            raise EnvironmentFailure("the container is gone")

    worker, (command, _) = begin(Leaking(["and?"] * 2, won())), _admit(world)
    worker.run(command)
    row = world.episode(command.episode_id)
    assert (row.state, row.attempts, row.reward) == (EpisodeState.FINISHED, 1, 1.0)
    assert len(publisher.seen) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ValueError("a bug"), Reason.ENV_ERROR), (MemoryError(), Reason.ENV_ERROR)],
)
def test_whatever_an_environment_raises_costs_one_attempt(
    world: World, begin: Begin, error: Exception, reason: Reason
) -> None:
    worker, (command, _) = begin(ScriptedEnvironment([], error)), _admit(world)
    worker.run(command)
    row = world.episode(command.episode_id)
    assert (row.state, row.fence, row.attempts) == (EpisodeState.QUEUED, 2, 1)


def test_an_unknown_item_fails_its_attempt(world: World, begin: Begin) -> None:
    worker, (command, _) = begin(), _admit(world, ["no such item"])
    worker.run(command)
    assert world.episode(command.episode_id).fence == 2


def test_without_a_live_policy_the_episode_is_given_back_uncounted(
    world: World, begin: Begin
) -> None:
    world.sql("UPDATE servings SET live_until = 1")
    worker, (command, _) = begin(wait_s=0.3), _admit(world)
    for fence in range(1, MANY + 2):
        worker.run(RunEpisode(run_id=world.run_id, episode_id=command.episode_id, fence=fence))
    row = world.episode(command.episode_id)
    assert (row.state, row.fence, row.attempts) == (EpisodeState.QUEUED, MANY + 2, 0)


@pytest.mark.parametrize("stops", [False, True])
def test_an_episode_waits_for_policies_that_are_away_beyond_its_deadline(
    world: World, begin: Begin, stops: bool
) -> None:
    """Its row's deadline is put off; a worker that stops gives it back all the same."""

    def due_at() -> float:
        return world.episode(command.episode_id).due_at

    def state() -> str:
        return world.episode(command.episode_id).state

    world.sql("UPDATE servings SET live_until = 1")
    worker, (command, _) = begin(), _admit(world)
    episode = threading.Thread(target=worker.run, args=(command,))
    episode.start()
    eventually(lambda: state() == EpisodeState.RUNNING, within_s=60, text=state)
    world.sql("UPDATE episodes SET due_at = 1 WHERE episode_id = :e", e=command.episode_id)
    eventually(lambda: due_at() > 1, within_s=60, text=lambda: str(due_at()))
    if stops:
        worker.stop.set()
    else:
        world.sql("UPDATE servings SET live_until = NULL")
    episode.join()
    row = world.episode(command.episode_id)
    expected = (EpisodeState.QUEUED, 2, 0) if stops else (EpisodeState.FINISHED, 1, 1)
    assert (row.state, row.fence, row.attempts) == expected


def test_a_finished_episode_waits_for_a_broker_that_is_away_beyond_its_deadline(
    world: World, begin: Begin, publisher: Checking
) -> None:
    """It is neither lost, nor given back, nor counted, and its row moves once the body is out."""

    def due_at() -> float:
        return world.episode(command.episode_id).due_at

    publisher.back.clear()
    worker, (command, _) = begin(), _admit(world)
    episode = threading.Thread(target=worker.run, args=(command,))
    episode.start()
    eventually(lambda: publisher.seen, within_s=60, text=lambda: "nothing was published")
    world.sql("UPDATE episodes SET due_at = 1 WHERE episode_id = :e", e=command.episode_id)
    eventually(lambda: due_at() > 1, within_s=60, text=lambda: str(due_at()))
    assert world.episode(command.episode_id).state == EpisodeState.RUNNING
    publisher.back.set()
    episode.join()
    row = world.episode(command.episode_id)
    assert (row.state, row.fence, row.attempts) == (EpisodeState.FINISHED, 1, 1)


def test_a_worker_that_stops_gives_back_an_episode_whose_broker_is_away(
    world: World, begin: Begin, publisher: Checking
) -> None:
    worker, (command, _) = begin(), _admit(world)
    publisher.back.clear()
    publisher.meanwhile = worker.stop.set
    worker.run(command)
    row = world.episode(command.episode_id)
    assert (row.state, row.fence, row.attempts) == (EpisodeState.QUEUED, 2, 0)


@pytest.mark.parametrize("reward", [1, np.float32(1.0), np.int64(1)])
def test_a_reward_of_any_kind_of_number_is_stored_under_the_hash_its_row_names(
    world: World, begin: Begin, link: Broker, reward: float
) -> None:
    ended = Outcome((), done=True, reward=reward, score=reward, metrics={"n": 3})
    worker, commands = begin(ScriptedEnvironment([], ended)), _admit(world)
    for command in commands:
        worker.run(command)
    with closing(link.consumer(recorder_queue(world.run_id))) as consumer:
        record_bodies(world.store, consumer, world.run_id, threading.Event(), drain=True)
    assert world.accounting() == []
    stored = "SELECT COUNT(*) FROM trajectories t JOIN episodes e ON t.sha256 = e.body_sha256"
    assert world.ask(stored) == [(2,)]
    assert world.episode(commands[0].episode_id).reward == 1.0


@pytest.mark.parametrize("reward", [True, "1", None, float("nan"), 10**400])
def test_a_reward_that_is_no_number_fails_the_attempt_and_names_what_came(
    world: World, begin: Begin, capsys: pytest.CaptureFixture[str], reward: float
) -> None:
    ended = Outcome((), done=True, reward=reward, score=0.0)
    worker, (command, _) = begin(ScriptedEnvironment([], ended)), _admit(world)
    worker.run(command)
    row = world.episode(command.episode_id)
    assert (row.state, row.fence, row.reason) == (EpisodeState.QUEUED, 2, Reason.ENV_ERROR)
    assert "the environment's reward is" in "".join(capsys.readouterr())


def test_a_body_that_the_broker_refuses_fails_after_the_bounded_attempts(
    world: World, begin: Begin, link: Broker
) -> None:
    worker, (command, _) = begin(), _admit(world)
    link.delete_run(world.run_id)
    for fence in range(1, MANY + 1):
        worker.run(RunEpisode(run_id=world.run_id, episode_id=command.episode_id, fence=fence))
    row = world.episode(command.episode_id)
    assert (row.state, row.reason, row.status, row.reward) == (
        EpisodeState.FAILED,
        Reason.PUBLISH_FAILED,
        Status.LOST,
        None,
    )


def test_a_worker_that_stops_gives_back_and_takes_nothing_more(world: World, begin: Begin) -> None:
    class Stopping(ScriptedEnvironment):
        def start(self):  # type: ignore[no-untyped-def]
            worker.stop.set()
            return super().start()

    worker, (first, second) = begin(Stopping(["and?"], won())), _admit(world)
    worker.run(first)
    worker.run(second)
    rows = [world.episode(command.episode_id) for command in (first, second)]
    assert [(row.state, row.fence, row.attempts) for row in rows] == [
        (EpisodeState.QUEUED, 2, 0),
        (EpisodeState.QUEUED, 1, 0),
    ]


@pytest.fixture
def flushed() -> Iterator[list[float]]:
    """The time-outs that a collector of traces was flushed with."""
    found: list[float] = []
    spans: list[Span] = []
    tracing.set_sink(Sink(spans.append, 1.0, found.append))
    yield found
    tracing.set_sink(None)


def test_a_worker_whose_environment_hangs_gives_back_and_leaves(
    world: World, begin: Begin, flushed: list[float]
) -> None:
    class Hanging(ScriptedEnvironment):
        def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
            hangs.set()
            assert again.wait(200)
            return super().call(calls)

    hangs, again, stop, left = (threading.Event() for _ in range(4))
    worker, (first, second) = begin(Hanging([], won())), _admit(world)
    episode = threading.Thread(target=worker.run, args=(first,))
    episode.start()
    assert hangs.wait(60)
    watch = threading.Thread(
        target=leave_in_time,
        args=(worker, stop, lambda _code: left.set()),
        kwargs={"grace_s": 0.1},
    )
    watch.start()
    assert not left.is_set()
    stop.set()
    assert left.wait(60)
    assert flushed == [FLUSH_S]  # nothing that was traced is lost
    row = world.episode(first.episode_id)
    assert (row.state, row.fence, row.attempts) == (EpisodeState.QUEUED, 2, 0)
    assert world.episode(second.episode_id).fence == 1
    ended = "SELECT ended_at FROM workers WHERE worker_id <> :own"
    assert world.ask(ended, own=world.worker_id) != [(None,)]
    again.set()
    for thread in (episode, watch):
        thread.join(60)
    row = world.episode(first.episode_id)
    assert (row.state, row.fence, row.attempts) == (EpisodeState.QUEUED, 2, 0)


def test_one_beat_extends_the_lease_of_all_episodes_until_the_end(
    world: World, begin: Begin
) -> None:
    worker = begin()
    lease = "SELECT lease_until FROM workers WHERE worker_id <> :own"
    ((before,),) = world.ask(lease, own=world.worker_id)
    worker.stop.set()
    eventually(
        lambda: world.ask(lease, own=world.worker_id)[0][0] > before,
        within_s=60,
        text=lambda: str(before),
    )
    worker.close()
    ended = "SELECT ended_at FROM workers WHERE worker_id <> :own"
    assert world.ask(ended, own=world.worker_id) != [(None,)]


def test_items_of_a_source_are_found_by_their_ids(world: World, begin: Begin) -> None:
    made: list[Item] = []

    def make(item: Item) -> Environment:
        made.append(item)
        return ScriptedEnvironment([], won())

    worker = begin(source=ScriptedSource(make))
    for command in _admit(world, ["train-item-2", "train-item-1"]):
        worker.run(command)
    assert sorted(item.item_id for item in made) == ["train-item-1"] * 2 + ["train-item-2"] * 2


def test_an_episode_that_ends_while_the_store_is_away_is_finished_once_it_is_back(
    world: World, begin: Begin, publisher: Checking
) -> None:
    """Longer than the store's own patience; nothing is played again or counted."""
    worker, (command, _) = begin(), _admit(world)
    outage = Outage(world.store)
    forbid_waiting(world.store)
    publisher.meanwhile = outage.begin
    running = threading.Thread(target=worker.run, args=(command,))
    running.start()
    eventually(lambda: outage.refused > 3, within_s=60, text=lambda: "it did not try again")
    outage.end()
    running.join(60)
    row = world.episode(command.episode_id)
    assert (row.state, row.fence, row.attempts) == (EpisodeState.FINISHED, 1, 1)
    assert row.reason is None
    assert len(publisher.seen) == 1


def test_a_claim_whose_answer_was_lost_is_driven(
    world: World, begin: Begin, publisher: Checking
) -> None:
    worker, (command, _) = begin(), _admit(world)
    with lose_next_answer(world.store):
        worker.run(command)
    row = world.episode(command.episode_id)
    assert (row.state, row.fence, row.attempts) == (EpisodeState.FINISHED, 1, 1)
    assert world.ask("SELECT COUNT(*) FROM refusals") == [(0,)]


def test_a_command_that_comes_twice_at_once_is_driven_once(
    world: World, begin: Begin, publisher: Checking
) -> None:
    """The second comes while the first runs, and its own claim loses an answer."""
    worker, (command, _) = begin(), _admit(world)
    publisher.meanwhile = lambda: worker.run(command)
    worker.run(command)
    assert len(publisher.seen) == 1
    assert world.episode(command.episode_id).state == EpisodeState.FINISHED


def test_a_worker_keeps_its_lease_while_its_threads_hold_every_connection(
    world: World, begin: Begin
) -> None:
    begin()
    world.sql("UPDATE workers SET lease_until = 1 WHERE host = 'here'")  # the world's own
    with ExitStack() as stack:
        for _ in range(12):  # the pool of a store for eight threads, and its overflow
            stack.enter_context(world.store.engine.connect())
        beside = stack.enter_context(closing(world.store.one_thread()))
        before = beside.ask(_lease_until)
        eventually(
            lambda: beside.ask(_lease_until) > before,
            within_s=60,
            text=lambda: "the lease was not extended",
        )


def test_a_worker_that_ends_while_the_store_is_away_leaves_its_lease_to_end_by_itself(
    world: World, begin: Begin
) -> None:
    """Closing raises nothing that would be told in place of what ended the process."""
    worker, outage = begin(), Outage(world.store)
    forbid_waiting(world.store)
    outage.begin()
    with capture_logs() as lines:
        worker.close()
    outage.end()
    assert lines[-1]["event"] == "Lease not released; it expires by itself"


def _lease_until(session: Session) -> float:
    return session.scalar(select(func.max(Worker.lease_until))) or 0.0


def test_the_databases_clock_is_known_although_the_machines_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    clock.set(5000.0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert clock.now() >= 5000.0
