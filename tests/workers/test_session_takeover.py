"""The next worker goes on with the session of an env server that the last one used."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import room_task
from policy_servers import ScriptedSource
from run_transitions import World
from running import eventually
from steps_kept import kept
from structlog.testing import capture_logs
from takeovers import (
    ANSWERS,
    TURNS,
    Death,
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
from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.core.telemetry import metrics
from agentrl.core.types import EpisodeState
from agentrl.envs import registry
from agentrl.envs.contract import Environment, Item, Outcome, Recovery, ToolCall
from agentrl.envs.server.client import RemoteEnvironment
from agentrl.envs.server.server import EnvServer
from agentrl.envs.server.task_http_client import RemoteServer
from agentrl.workers.worker import EpisodeWorker


class Watched(RemoteEnvironment):
    """`before`, `after`: what its worker does before and after its Nth action."""

    before: dict[int, Callable[[], object]]
    after: dict[int, Callable[[], object]]

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        action = self._turn + 1
        try:
            self.before.pop(action, lambda: None)()
            outcome = super().call(calls)
            self.after.pop(action, lambda: None)()
        except Death:
            self.leave()  # who is dead closes nothing
            raise
        return outcome


class Served:
    """Workers whose rooms are on an env server, which `server` may be replaced."""

    def __init__(self, workers: Workers, script: Script) -> None:
        self.world, self.link, self.script = workers.world, workers.link, script
        self.recovery: Recovery = "restart_only"
        self.watched = type("OwnWatched", (Watched,), {"before": {}, "after": {}})
        self._workers = workers
        self.server = self._serve()

    def worker(self) -> EpisodeWorker:
        source = ScriptedSource(self._make)
        source.recovery = self.recovery  # type: ignore[attr-defined]
        return self._workers.start(source)

    def replace_server(self) -> None:
        """All its sessions die with it."""
        self.server._http.close()
        self.server = self._serve()

    def sessions(self) -> int:
        return len(self.server._sessions.running())

    def _serve(self) -> EnvServer:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(registry.TASKS, "rooms", "room_task:Rooms")
            return EnvServer({"rooms": Task()})

    def _make(self, item: Item) -> Environment:
        remote = RemoteServer(Envs(url=self.server.url), "rooms")
        start = {"index": item.item_id, "custom_task": {}}
        made: Environment = self.watched(remote, start)
        return made


@pytest.fixture
def served(world: World, link: Broker, script: Script, model_dir: Path) -> Iterator[Served]:
    room_task.Room.actions = 0
    with closing(Workers(world, link, model_dir)) as workers:
        made = Served(workers, script)
        yield made
    made.server.close()


def _takeovers(status: str) -> float:
    found: Any = metrics.TAKEOVERS.labels(task="dbbench", status=status)
    return float(found._value.get())


def _assert_continued(served: Served, command: RunEpisode) -> None:
    """The episode has ended, each turn sampled and applied once, and left no session."""
    world = served.world
    assert world.episode(command.episode_id).state == EpisodeState.FINISHED
    body = only_body(world, served.link)
    assert [step.answer for step in body.steps] == [*ANSWERS, ""]
    assert served.script.turns == room_task.Room.actions == TURNS
    assert (body.turns, body.fence, body.reward) == (TURNS, command.fence, 1.0)
    assert world.accounting() == []
    assert kept(world) == []


@pytest.fixture(params=["before", "after"])
def dying(request: pytest.FixtureRequest, served: Served) -> dict[int, Callable[[], object]]:
    """What the worker does before its action arrives, or before its answer does."""
    found: dict[int, Callable[[], object]] = getattr(served.watched, request.param)
    return found


@pytest.mark.parametrize("action", range(1, TURNS + 1))
def test_no_action_is_applied_twice_wherever_the_worker_dies(
    served: Served, dying: dict[int, Callable[[], object]], command: RunEpisode, action: int
) -> None:
    """Nor does the task need to be replayable."""
    applied = action - (dying is served.watched.before)
    attached = _takeovers("attached")
    dying[action] = die
    command = kill(served.world, served.worker(), command)
    served.worker().run(command)
    _assert_continued(served, command)
    assert _takeovers("attached") - attached == bool(applied)
    assert served.sessions() == 0


def test_a_worker_that_is_told_to_stop_leaves_its_session_to_the_next(
    served: Served, script: Script, command: RunEpisode
) -> None:
    first = served.worker()
    script.before[3] = first.stop.set
    first.run(command)
    assert served.sessions() == 1
    command = next_command(command)
    served.worker().run(command)
    _assert_continued(served, command)


def test_a_late_worker_does_not_act_in_a_session_that_another_uses(
    world: World, served: Served, command: RunEpisode
) -> None:
    """Its step was stored before it lost the episode, and its action comes after."""
    asleep, awake = threading.Event(), threading.Event()

    def sleep() -> None:
        asleep.set()
        assert awake.wait(120)

    served.watched.before[3] = sleep
    late = threading.Thread(target=served.worker().run, args=(command,))
    late.start()
    assert asleep.wait(120)
    lose(world, command)
    command = next_command(command)
    served.worker().run(command)
    awake.set()
    late.join(120)
    _assert_continued(served, command)


def test_a_session_that_is_ahead_of_what_was_recorded_is_given_up(
    world: World, served: Served, command: RunEpisode
) -> None:
    served.recovery = "replayable"
    served.watched.after[3] = die
    after = kill(world, served.worker(), command)
    world.sql("DELETE FROM journal WHERE number = 2")
    assert _anew(served, after) == "ahead"
    assert room_task.Room.actions == 3 + TURNS
    assert served.sessions() == 0


def test_a_session_that_died_with_its_server_is_played_again_only_where_that_is_allowed(
    world: World, served: Served, link: Broker, script: Script, command: RunEpisode
) -> None:
    served.watched.after[3] = die
    command = kill(world, served.worker(), command)
    served.replace_server()
    served.recovery = "replayable"
    replayed = _takeovers("replayed")
    served.watched.after[4] = die
    command = kill(world, served.worker(), command)
    served.replace_server()
    served.recovery = "restart_only"
    assert _anew(served, command) == "restart_only"
    assert script.turns == TURNS + TURNS
    assert _takeovers("replayed") == replayed, "that attempt died, too"
    assert only_body(world, link).fence == 3


def test_an_episode_that_fails_ends_its_session(
    world: World, served: Served, command: RunEpisode
) -> None:
    def fail() -> None:
        raise RuntimeError("out of luck")

    served.watched.after[2] = fail
    served.worker().run(command)
    assert world.episode(command.episode_id).fence == 2
    eventually(lambda: served.sessions() == 0, within_s=60, text=lambda: "it runs on")


def _anew(served: Served, command: RunEpisode) -> str:
    """Play the episode from its start; return the reason that the worker gives."""
    with capture_logs() as lines:
        served.worker().run(command)
    (line,) = [each for each in lines if each["event"].startswith("Episode starts anew")]
    return str(line["reason"])
