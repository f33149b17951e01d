"""A worker over a real store, a real queue file and a scripted policy behind HTTP."""

import threading
from collections.abc import Iterator, Sequence

import pytest
from policy_servers import ScriptedEnvironment, ScriptedSource, won
from run_transitions import World
from structlog.testing import capture_logs
from worker_runs import Begin, Checking, admit

from agentrl.broker.messages import RunEpisode
from agentrl.core.errors import EnvironmentFailure
from agentrl.core.telemetry import tracing
from agentrl.core.telemetry.tracing import Sink, Span
from agentrl.core.types import EpisodeState, Status
from agentrl.envs import registry
from agentrl.envs.contract import Environment, Item, Outcome, ToolCall
from agentrl.workers.worker_exit import FLUSH_S, leave_in_time


@pytest.fixture
def world(scripted_world: World) -> World:
    return scripted_world


def test_episodes_of_a_real_task_run_to_a_terminal_row(world: World, begin: Begin) -> None:
    source = registry.source("dbbench", {"style": "compact", "difficulty": "easy"})
    worker = begin(source=source)
    for command in admit(world, [item.item_id for item in source.items("train")[:3]]):
        worker.run(command)
    states = world.ask("SELECT DISTINCT state FROM episodes")
    assert states == [(EpisodeState.FINISHED,)]
    assert world.ask("SELECT COUNT(*) FROM episodes WHERE turns BETWEEN 1 AND 4") == [(6,)]


def test_an_episode_has_no_more_turns_than_its_groups_horizon(world: World, begin: Begin) -> None:
    first, second = admit(world)
    worker = begin()
    worker.run(first)
    world.sql("UPDATE groups SET horizon = 2")
    worker.run(second)
    found = [world.episode(command.episode_id) for command in (first, second)]
    assert [row.turns for row in found] == [3, 2]
    assert [row.status for row in found] == [Status.COMPLETED, Status.TASK_LIMIT]


def test_a_command_twice_runs_once(world: World, begin: Begin, publisher: Checking) -> None:
    worker, (command, _) = begin(), admit(world)
    worker.run(command)
    worker.run(command)
    other = RunEpisode(run_id="another", episode_id=command.episode_id, fence=1)
    worker.run(other)
    assert len(publisher.seen) == 1


def test_an_environment_that_fails_to_close_costs_no_episode(
    world: World, begin: Begin, publisher: Checking
) -> None:
    class Leaking(ScriptedEnvironment):
        def close(self) -> None:
            raise EnvironmentFailure("the container is gone")

    worker, (command, _) = begin(Leaking(["and?"] * 2, won())), admit(world)
    worker.run(command)
    row = world.episode(command.episode_id)
    assert (row.state, row.attempts, row.reward) == (EpisodeState.FINISHED, 1, 1.0)
    assert len(publisher.seen) == 1


def test_an_unknown_item_fails_its_attempt(world: World, begin: Begin) -> None:
    worker, (command, _) = begin(), admit(world, ["no such item"])
    worker.run(command)
    assert world.episode(command.episode_id).fence == 2


def test_an_attempt_at_a_task_that_was_removed_fails_by_its_name(
    world: World, begin: Begin
) -> None:
    worker, (command, _) = begin(), admit(world)
    world.sql("UPDATE episodes SET task = 'removed'")
    with capture_logs() as lines:
        worker.run(command)
    [error] = [line["error"] for line in lines if line["event"] == "Attempt failed"]
    assert "task removed is not in the configuration" in error
    assert world.episode(command.episode_id).fence == 2


def test_a_worker_that_stops_gives_back_and_takes_nothing_more(world: World, begin: Begin) -> None:
    class Stopping(ScriptedEnvironment):
        def start(self):  # type: ignore[no-untyped-def]
            worker.stop.set()
            return super().start()

    worker, (first, second) = begin(Stopping(["and?"], won())), admit(world)
    worker.run(first)
    worker.run(second)
    rows = [world.episode(command.episode_id) for command in (first, second)]
    assert [(row.state, row.fence, row.attempts) for row in rows] == [
        (EpisodeState.QUEUED, 2, 0),
        (EpisodeState.QUEUED, 1, 0),
    ]


@pytest.fixture
def flushed(spans: list[Span]) -> list[float]:
    """The time-outs that a collector of traces was flushed with."""
    found: list[float] = []
    tracing.set_sink(Sink(spans.append, 1.0, found.append))
    return found


@pytest.fixture
def spans() -> Iterator[list[Span]]:
    """The spans of this process."""
    found: list[Span] = []
    tracing.set_sink(Sink(found.append, 1.0, lambda _: None))
    yield found
    tracing.set_sink(None)


@pytest.mark.parametrize(("reward", "success"), [(1.0, True), (0.5, False)])
def test_the_trace_of_an_attempt_says_what_it_was_worth(
    world: World, begin: Begin, spans: list[Span], reward: float, *, success: bool
) -> None:
    worker, (command, _) = begin(ScriptedEnvironment([], won(reward))), admit(world)
    worker.run(command)
    (root,) = [span.fields for span in spans if span.name == "episode"]
    assert (root["reward"], root["success"], root["status"]) == (reward, success, "completed")
    assert root["conversation_id"] == root["episode_id"] == command.episode_id


def test_a_worker_whose_environment_hangs_gives_back_and_leaves(
    world: World, begin: Begin, flushed: list[float]
) -> None:
    class Hanging(ScriptedEnvironment):
        def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
            hangs.set()
            assert again.wait(200)
            return super().call(calls)

    hangs, again, stop, left = (threading.Event() for _ in range(4))
    worker, (first, second) = begin(Hanging([], won())), admit(world)
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


def test_items_of_a_source_are_found_by_their_ids(world: World, begin: Begin) -> None:
    made: list[Item] = []

    def make(item: Item) -> Environment:
        made.append(item)
        return ScriptedEnvironment([], won())

    worker = begin(source=ScriptedSource(make))
    for command in admit(world, ["train-item-2", "train-item-1"]):
        worker.run(command)
    assert sorted(item.item_id for item in made) == ["train-item-1"] * 2 + ["train-item-2"] * 2


def test_a_command_that_comes_twice_at_once_is_driven_once(
    world: World, begin: Begin, publisher: Checking
) -> None:
    """The second comes while the first runs, and its own claim loses an answer."""
    worker, (command, _) = begin(), admit(world)
    publisher.meanwhile = lambda: worker.run(command)
    worker.run(command)
    assert len(publisher.seen) == 1
    assert world.episode(command.episode_id).state == EpisodeState.FINISHED
