"""An episode whose worker ended goes on at the turn that it was in."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from policy_servers import ScriptedEnvironment, ScriptedSource, won
from run_transitions import World
from running import eventually
from steps_kept import kept
from store_outage import Outage
from structlog.testing import capture_logs
from takeovers import (
    ANSWERS,
    TURNS,
    Script,
    Workers,
    die,
    kill,
    lose,
    next_command,
    only_body,
)

from agentrl.broker.api import Broker
from agentrl.broker.messages import RunEpisode
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import EpisodeState
from agentrl.envs.contract import Environment, Outcome, Recovery, ToolCall
from agentrl.workers.worker import EpisodeWorker


class Room(ScriptedEnvironment):
    """Counts actions. `at`: what happens when the Nth action of all rooms is applied."""

    actions = 0
    at: dict[int, Callable[[], object]]

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        type(self).actions += 1
        self.at.get(self.actions, lambda: None)()
        return super().call(calls)


class Rooms:
    """Workers whose rooms answer alike, until a test says otherwise."""

    def __init__(self, world: World, link: Broker, model_dir: Path) -> None:
        self.recovery: Recovery = "replayable"
        self.answers: Sequence[str] = ANSWERS
        self.world, self.link = world, link
        self.workers = Workers(world, link, model_dir)
        self.room = type("OwnRoom", (Room,), {"actions": 0, "at": {}})

    def worker(self, journal: str = "steps") -> EpisodeWorker:
        source = ScriptedSource(self._make)
        source.recovery = self.recovery  # type: ignore[attr-defined]
        return self.workers.start(source, journal)

    def _make(self, _item: object) -> Environment:
        made: Environment = self.room(list(self.answers), won())
        return made


@pytest.fixture
def rooms(world: World, link: Broker, model_dir: Path) -> Iterator[Rooms]:
    made = Rooms(world, link, model_dir)
    yield made
    made.workers.close()


def _continued(world: World, rooms: Rooms, command: RunEpisode) -> Trajectory:
    """Another worker ends the episode; nothing disagrees, and no step is left."""
    with capture_logs() as lines:
        rooms.worker().run(command)
    assert "Episode continues from its recorded steps" in {line["event"] for line in lines}
    assert world.episode(command.episode_id).state == EpisodeState.FINISHED
    body = only_body(world, rooms.link)
    assert world.accounting() == []
    assert world.ask("SELECT * FROM unserved_steps") == []
    assert kept(world) == []
    return body


@pytest.mark.parametrize("action", range(1, TURNS + 1))
def test_a_worker_that_dies_at_an_action_costs_no_sampled_token(
    world: World, rooms: Rooms, script: Script, command: RunEpisode, action: int
) -> None:
    rooms.room.at[action] = die
    after = kill(world, rooms.worker(), command)
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
    lose(world, command)
    body = _continued(world, rooms, next_command(command))
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
        die(),
    )
    after = kill(world, rooms.worker(), command)
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
    body = _continued(world, rooms, next_command(command))
    assert script.turns == body.turns == TURNS


def test_an_episode_may_change_its_worker_at_every_turn(
    world: World, rooms: Rooms, script: Script, command: RunEpisode
) -> None:
    action = 0
    for turn in range(1, TURNS):
        action += turn
        rooms.room.at[action] = die
        command = kill(world, rooms.worker(), command)
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
    rooms.room.at[3] = die
    after = kill(world, rooms.worker(), command)
    rooms.answers = ["one", "another", "three"]
    assert _anew(world, rooms, after) == "diverged"
    assert script.turns == 3 + TURNS


def test_an_environment_that_ends_earlier_than_it_did_starts_anew(
    world: World, rooms: Rooms, command: RunEpisode
) -> None:
    rooms.room.at[3] = die
    after = kill(world, rooms.worker(), command)
    rooms.answers = ["one"]
    assert _anew(world, rooms, after) == "diverged"


def test_a_task_that_promises_nothing_starts_anew(
    world: World, rooms: Rooms, command: RunEpisode
) -> None:
    rooms.recovery = "restart_only"
    rooms.room.at[3] = die
    after = kill(world, rooms.worker(), command)
    assert _anew(world, rooms, after) == "restart_only"


def test_an_action_that_ends_its_worker_is_repeated_once(
    world: World, rooms: Rooms, command: RunEpisode
) -> None:
    rooms.room.at |= {2: die, 4: die}
    after = kill(world, rooms.worker(), command)
    after = kill(world, rooms.worker(), after)
    assert _anew(world, rooms, after) == "no_progress"


def test_a_step_that_cannot_be_read_starts_anew(
    world: World, rooms: Rooms, command: RunEpisode
) -> None:
    rooms.room.at[2] = die
    after = kill(world, rooms.worker(), command)
    world.sql("UPDATE journal SET body = :b WHERE number = 1", b=b"\x00")
    assert _anew(world, rooms, after) == "unreadable"


def test_a_missing_step_starts_anew(world: World, rooms: Rooms, command: RunEpisode) -> None:
    rooms.room.at[3] = die
    after = kill(world, rooms.worker(), command)
    world.sql("DELETE FROM journal WHERE number = 1")
    assert _anew(world, rooms, after) == "incomplete"


def test_a_worker_without_a_journal_stores_no_step_and_starts_anew(
    world: World, rooms: Rooms, script: Script, command: RunEpisode
) -> None:
    rooms.room.at[3] = die
    after = kill(world, rooms.worker("off"), command)
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
