"""An episode whose worker ended goes on at the turn that it was in.

A death is an exception that nobody catches: its attempt leaves its row as it stands.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from policy_servers import ScriptedEnvironment, ScriptedSource, serve, won
from run_transitions import World
from running import eventually
from steps_kept import kept
from store_outage import Outage
from structlog.testing import capture_logs

from agentrl import broker
from agentrl.broker.api import Broker
from agentrl.broker.messages import EpisodeFinished, RunEpisode, decode
from agentrl.broker.topology import recorder_queue
from agentrl.core.config.config import Config
from agentrl.core.config.sections import Dispatch, Model, Task
from agentrl.core.config.sections import Worker as WorkerConfig
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import EpisodeState, Reason, Status
from agentrl.db.store import Store
from agentrl.db.transitions import episodes
from agentrl.envs.contract import Environment, Outcome, Recovery, ToolCall
from agentrl.ops.processes.worker import worker_config
from agentrl.serving.engine_api import ModelLimits, Request
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.recorder import record_bodies
from agentrl.workers.worker import EpisodeWorker

ANSWERS = ["one", "two", "three"]
TURNS = len(ANSWERS) + 1


class Death(BaseException):
    """SIGKILL."""


class Script:
    """A policy that counts its turns. `before`: what happens while it samples its Nth."""

    def __init__(self) -> None:
        self.turns = 0
        self.before: dict[int, Callable[[], object]] = {}

    def __call__(self, request: Request) -> Sequence[int]:
        self.turns += 1
        self.before.get(self.turns, lambda: None)()
        return [6 + (self.turns * 7 + n) % 200 for n in range(4)] + sorted(request.stop_ids)[:1]


class Room(ScriptedEnvironment):
    """Counts actions. `at`: what happens when the Nth action of all rooms is applied."""

    actions = 0
    at: dict[int, Callable[[], object]]

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        type(self).actions += 1
        self.at.get(self.actions, lambda: None)()
        return super().call(calls)


def _die() -> None:
    raise Death


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def world(store: Store, script: Script) -> Iterator[World]:
    begun = World.begin(store)
    checkpoint = {f"{begun.run_id}-v0": ("current", Path())}
    with serve(ScriptedEngine(script, limits=ModelLimits(300, 4096)), checkpoint) as server:
        begun.sql("UPDATE policy_servers SET url = :url", url=server.url)
        yield begun


@pytest.fixture
def link(world: World, tmp_path: Path) -> Iterator[Broker]:
    with closing(broker.connect(f"sqlite:///{tmp_path / 'queue.db'}")) as opened:
        opened.declare_run(world.run_id)
        yield opened


class Rooms:
    """Workers whose rooms answer alike, until a test says otherwise."""

    def __init__(self, world: World, link: Broker, model_dir: Path) -> None:
        self.recovery: Recovery = "replayable"
        self.answers: Sequence[str] = ANSWERS
        self.world, self.link, self._model_dir = world, link, model_dir
        self.workers: list[EpisodeWorker] = []
        self.room = type("OwnRoom", (Room,), {"actions": 0, "at": {}})

    def worker(self, journal: str = "steps") -> EpisodeWorker:
        config = Config(
            tasks={"dbbench": Task()},
            model=Model(path=str(self._model_dir)),
            worker=WorkerConfig(concurrency=4, beat_s=0.1, lease_s=5.0, journal=journal),  # type: ignore[arg-type]
            dispatch=Dispatch(max_attempts=9),
        )
        source = ScriptedSource(self._make)
        source.recovery = self.recovery  # type: ignore[attr-defined]
        worker = EpisodeWorker(
            worker_config(config),
            self.world.run_id,
            self.world.store,
            self.link.publisher(),
            {"dbbench": source},
        )
        self.workers.append(worker)
        worker.start()
        return worker

    def _make(self, _item: object) -> Environment:
        made: Environment = self.room(list(self.answers), won())
        return made


@pytest.fixture
def rooms(world: World, link: Broker, model_dir: Path) -> Iterator[Rooms]:
    made = Rooms(world, link, model_dir)
    yield made
    for worker in made.workers:
        worker.close()


@pytest.fixture
def command(world: World) -> RunEpisode:
    """The first member of a group of two."""
    (group_id,) = world.admit(0, size=2)
    world.sql("UPDATE episodes SET item_id = 'train-item-0' WHERE group_id = :g", g=group_id)
    return RunEpisode(run_id=world.run_id, episode_id=f"{group_id}-0", fence=1)


def _next(command: RunEpisode) -> RunEpisode:
    return RunEpisode(run_id=command.run_id, episode_id=command.episode_id, fence=command.fence + 1)


def _kill(world: World, worker: EpisodeWorker, command: RunEpisode) -> RunEpisode:
    """Run an attempt until its worker dies, and re-issue it; the next command."""
    with pytest.raises(Death):
        worker.run(command)
    _lose(world, command)
    return _next(command)


def _lose(world: World, command: RunEpisode) -> None:
    claimed = episodes.ClaimedEpisode.of(world.episode(command.episode_id))
    assert world.store.transact(
        lambda s: episodes.retry(s, claimed, Reason.LOST, max_attempts=9, detail=Status.LOST)
    )


def _body(world: World, link: Broker) -> Trajectory:
    """Record what was published; the only body."""
    with closing(link.consumer(recorder_queue(world.run_id))) as consumer:
        record_bodies(world.store, consumer, world.run_id, threading.Event(), drain=True)
    ((wire,),) = world.ask("SELECT body FROM trajectories")
    message = decode(wire)
    assert isinstance(message, EpisodeFinished)
    return message.trajectory


def _continued(world: World, rooms: Rooms, command: RunEpisode) -> Trajectory:
    """Another worker ends the episode; nothing disagrees, and no step is left."""
    with capture_logs() as lines:
        rooms.worker().run(command)
    assert "Episode continues from its recorded steps" in {line["event"] for line in lines}
    assert world.episode(command.episode_id).state == EpisodeState.FINISHED
    body = _body(world, rooms.link)
    assert world.accounting() == []
    assert world.ask("SELECT * FROM unserved_steps") == []
    assert kept(world) == []
    return body


@pytest.mark.parametrize("action", range(1, TURNS + 1))
def test_a_worker_that_dies_at_an_action_costs_no_sampled_token(
    world: World, rooms: Rooms, script: Script, command: RunEpisode, action: int
) -> None:
    rooms.room.at[action] = _die
    after = _kill(world, rooms.worker(), command)
    assert kept(world) == [(1, number) for number in range(action)]
    body = _continued(world, rooms, after)
    assert script.turns == body.turns == TURNS
    assert rooms.room.actions == action + TURNS
    assert (body.fence, body.reward) == (2, 1.0)


def test_a_turn_that_was_not_stored_is_sampled_again_and_its_late_worker_does_not_act(
    world: World, rooms: Rooms, script: Script, command: RunEpisode
) -> None:
    first, outage = _away_from(rooms)
    script.before[3] = outage.begin
    running = threading.Thread(target=first.run, args=(command,))
    running.start()
    eventually(lambda: outage.refused > 1, within_s=60, text=lambda: "nobody tried")
    _lose(world, command)
    body = _continued(world, rooms, _next(command))
    outage.end()
    running.join(60)
    assert body.turns == TURNS
    assert script.turns == TURNS + 1
    assert rooms.room.actions == 2 + TURNS
    assert kept(world) == []


def test_each_token_names_the_policy_that_sampled_it(
    world: World, rooms: Rooms, command: RunEpisode
) -> None:
    """The server of the first steps has ended; another one samples the rest."""
    rooms.room.at[2] = lambda: (
        world.sql("UPDATE servings SET track = 'lagged(4)' WHERE track = 'current'"),
        _die(),
    )
    after = _kill(world, rooms.worker(), command)
    body = _continued(world, rooms, after)
    tracks = [body.policies[step.policy_index].track for step in body.steps]
    assert tracks[2:] == ["lagged(4)"] * 2
    assert [step.answer for step in body.steps] == [*ANSWERS, ""]


def test_a_worker_that_is_told_to_stop_loses_not_even_the_turn_in_flight(
    world: World, rooms: Rooms, script: Script, command: RunEpisode
) -> None:
    first = rooms.worker()
    script.before[2] = first.stop.set
    first.run(command)
    row = world.episode(command.episode_id)
    assert (row.state, row.fence, row.attempts) == (EpisodeState.QUEUED, 2, 0)
    body = _continued(world, rooms, _next(command))
    assert script.turns == body.turns == TURNS


def test_an_episode_may_change_its_worker_at_every_turn(
    world: World, rooms: Rooms, script: Script, command: RunEpisode
) -> None:
    action = 0
    for turn in range(1, TURNS):
        action += turn
        rooms.room.at[action] = _die
        command = _kill(world, rooms.worker(), command)
    assert [fence for fence, _ in kept(world)] == [1, 2, 3]
    body = _continued(world, rooms, command)
    assert script.turns == body.turns == TURNS
    assert body.attempt == TURNS


def _away_from(rooms: Rooms) -> tuple[EpisodeWorker, Outage]:
    """A worker whose journal cannot reach the store while the outage lasts."""
    worker = rooms.worker()
    assert worker._commits is not None
    return worker, Outage(worker._commits._store)


def _anew(world: World, rooms: Rooms, command: RunEpisode) -> str:
    """Another worker plays the episode from its start; the reason that it gives."""
    with capture_logs() as lines:
        rooms.worker().run(command)
    (line,) = [each for each in lines if each["event"].startswith("Episode starts anew")]
    assert world.episode(command.episode_id).state == EpisodeState.FINISHED
    assert {fence for fence, _ in kept(world)} == {command.fence}
    return str(line["reason"])


def test_an_environment_that_answers_otherwise_starts_anew(
    world: World, rooms: Rooms, script: Script, command: RunEpisode
) -> None:
    rooms.room.at[3] = _die
    after = _kill(world, rooms.worker(), command)
    rooms.answers = ["one", "another", "three"]
    assert _anew(world, rooms, after) == "diverged"
    assert script.turns == 3 + TURNS


def test_an_environment_that_ends_earlier_than_it_did_starts_anew(
    world: World, rooms: Rooms, command: RunEpisode
) -> None:
    rooms.room.at[3] = _die
    after = _kill(world, rooms.worker(), command)
    rooms.answers = ["one"]
    assert _anew(world, rooms, after) == "diverged"


def test_a_task_that_promises_nothing_starts_anew(
    world: World, rooms: Rooms, command: RunEpisode
) -> None:
    rooms.recovery = "restart_only"
    rooms.room.at[3] = _die
    after = _kill(world, rooms.worker(), command)
    assert _anew(world, rooms, after) == "restart_only"


def test_an_action_that_ends_its_worker_is_repeated_once(
    world: World, rooms: Rooms, command: RunEpisode
) -> None:
    rooms.room.at |= {2: _die, 4: _die}
    after = _kill(world, rooms.worker(), command)
    after = _kill(world, rooms.worker(), after)
    assert _anew(world, rooms, after) == "no_progress"


def test_a_step_that_cannot_be_read_starts_anew(
    world: World, rooms: Rooms, command: RunEpisode
) -> None:
    rooms.room.at[2] = _die
    after = _kill(world, rooms.worker(), command)
    world.sql("UPDATE journal SET body = :b WHERE number = 1", b=b"\x00")
    assert _anew(world, rooms, after) == "unreadable"


def test_a_missing_step_starts_anew(world: World, rooms: Rooms, command: RunEpisode) -> None:
    rooms.room.at[3] = _die
    after = _kill(world, rooms.worker(), command)
    world.sql("DELETE FROM journal WHERE number = 1")
    assert _anew(world, rooms, after) == "incomplete"


def test_a_worker_without_a_journal_stores_no_step_and_starts_anew(
    world: World, rooms: Rooms, script: Script, command: RunEpisode
) -> None:
    rooms.room.at[3] = _die
    after = _kill(world, rooms.worker("off"), command)
    assert kept(world) == []
    rooms.worker("off").run(after)
    assert script.turns == 3 + TURNS


def test_no_action_takes_effect_before_its_step_is_stored(
    world: World, rooms: Rooms, script: Script, command: RunEpisode
) -> None:
    """The store is away: the worker waits, and goes on as if nothing had been."""
    worker, outage = _away_from(rooms)
    script.before[2] = outage.begin
    running = threading.Thread(target=worker.run, args=(command,))
    running.start()
    eventually(lambda: outage.refused > 2, within_s=60, text=lambda: "nobody tried")
    assert rooms.room.actions == 1
    outage.end()
    running.join(60)
    row = world.episode(command.episode_id)
    assert (row.state, row.attempts, rooms.room.actions) == (EpisodeState.FINISHED, 1, TURNS)
