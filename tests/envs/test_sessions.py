"""Sessions that end twice at once, break, wait in vain, or are asked for again too late."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from core.errors import EnvironmentFailure, ItemError
from core.process import process_began
from envs import sessions as sessions_module
from envs import wire
from envs.contract import Environment, Observation, Outcome, Tool, ToolCall
from envs.owner import Owner
from envs.sessions import Caller, Refused, Sessions


class SlowToClose:
    """An Environment that takes a moment to close and counts how often it is."""

    tools: tuple[Tool, ...] = ()
    takes_s = 0.1

    def __init__(self) -> None:
        self.closed = 0

    def start(self) -> Observation:
        return Observation(())

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:  # noqa: ARG002
        return Outcome(())

    def close(self) -> None:
        time.sleep(self.takes_s)
        self.closed += 1


async def start(
    sessions: Sessions, number: int, environment: Environment, owner: Owner | None = None
) -> dict[str, Any]:
    there = asyncio.Event().wait
    return await sessions.start(
        ("t", number),
        0,
        lambda: environment,
        repeatable=False,
        caller=Caller(there, owner),
    )


async def begun(sessions: Sessions) -> list[SlowToClose]:
    environments = [SlowToClose(), SlowToClose()]
    for number, environment in enumerate(environments):
        await start(sessions, number, environment)
    return environments


def test_tending_survives_a_session_that_is_cancelled_meanwhile() -> None:
    async def race() -> list[SlowToClose]:
        sessions = Sessions(4, 0.0)
        environments = await begun(sessions)

        async def cancel() -> None:
            await asyncio.sleep(0.05)
            with contextlib.suppress(Refused):
                await sessions.cancel(("t", 1))

        await asyncio.gather(sessions.tend(), cancel())
        assert sessions.running() == {}
        return environments

    assert [environment.closed for environment in asyncio.run(race())] == [1, 1]


def test_the_sessions_of_a_process_that_ended_free_their_places() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    began = process_began(dead.pid) or 0
    dead.wait()
    here = Owner.this()

    async def tended() -> dict[int, int | str]:
        sessions = Sessions(4, 60.0)
        owners = [replace(here, pid=dead.pid, began=began), here, None, replace(here, host="x")]
        for number, owner in enumerate(owners):
            await start(sessions, number, SlowToClose(), owner)
        await sessions.tend()
        return sessions.running()

    assert set(asyncio.run(tended())) == {1, 2, 3}, "of another host nothing can be known"


def test_two_that_cancel_everything_at_once_end_each_session_once() -> None:
    async def race() -> list[SlowToClose]:
        sessions = Sessions(4, 60.0)
        environments = await begun(sessions)
        await asyncio.gather(sessions.cancel_all(), sessions.close())
        with pytest.raises(Refused):
            await sessions.cancel(("t", 0))
        return environments

    assert [environment.closed for environment in asyncio.run(race())] == [1, 1]


class Faulty(SlowToClose):
    """Raises what it is told to."""

    takes_s = 0.0

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:  # noqa: ARG002
        raise self._error


SAID = wire.AssistantMessage("assistant", "hm")


@pytest.mark.parametrize("error", [SystemExit(1), StopIteration(), RuntimeError(), MemoryError()])
def test_whatever_an_environment_raises_ends_its_own_episode_alone(error: BaseException) -> None:
    async def play() -> dict[str, Any]:
        sessions = Sessions(4, 60.0)
        faulty, other = Faulty(error), SlowToClose()
        await start(sessions, 0, faulty)
        await start(sessions, 1, other)
        answer = await sessions.interact(("t", 0), SAID, 1, 9)
        assert (await sessions.interact(("t", 1), SAID, 1, 9))["status"] == "running"
        assert faulty.closed == 1
        await sessions.close()
        return answer

    answer = asyncio.run(play())
    assert (answer["status"], answer["finish"], answer["reward"]) == ("task error", True, 0)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError("word"), "KeyError: 'word'"),
        (RuntimeError(), "RuntimeError"),
        (EnvironmentFailure("the engine is gone"), "the engine is gone"),
    ],
)
def test_an_error_that_is_none_of_ours_is_told_with_its_type(error: Exception, told: str) -> None:
    async def play() -> dict[str, Any]:
        sessions = Sessions(1, 60.0)
        await start(sessions, 0, Faulty(error))
        answer = await sessions.interact(("t", 0), SAID, 1, 9)
        await sessions.close()
        return answer

    assert asyncio.run(play())["error"] == told


def test_an_item_that_breaks_at_a_turn_is_refused_and_frees_its_place() -> None:
    async def play() -> None:
        sessions = Sessions(1, 60.0)
        await start(sessions, 0, Faulty(ItemError("no such table")))
        with pytest.raises(Refused, match="no such table"):
            await sessions.interact(("t", 0), SAID, 1, 9)
        await asyncio.wait_for(start(sessions, 1, SlowToClose()), 5)
        await sessions.close()

    asyncio.run(play())


class Client:
    """Asks for a start until it hangs up."""

    def __init__(self, sessions: Sessions, number: int, environment: Environment) -> None:
        self.left = asyncio.Event()
        start = sessions.start(
            ("t", number), 0, lambda: environment, repeatable=True, caller=Caller(self._gone)
        )
        self.asked = asyncio.ensure_future(start)

    async def _gone(self) -> None:
        await self.left.wait()


def test_a_client_that_hangs_up_while_it_waits_gives_up_its_place_in_the_queue() -> None:
    async def play() -> list[SlowToClose]:
        sessions = Sessions(1, 60.0)
        environments = [SlowToClose() for _ in range(3)]
        await start(sessions, 0, environments[0])
        impatient, patient = (Client(sessions, n, environments[n]) for n in (1, 2))
        await asyncio.sleep(0.01)
        impatient.left.set()
        with pytest.raises(Refused) as refused:
            await impatient.asked
        assert refused.value.code == 406
        assert list(sessions.running()) == [0, 2]
        await sessions.cancel(("t", 0))
        assert (await patient.asked)["status"] == "running"
        await sessions.close()
        return environments

    assert [each.closed for each in asyncio.run(play())] == [1, 0, 1]


def test_a_start_is_given_up_only_once_nobody_waits_for_it() -> None:
    async def play() -> None:
        sessions = Sessions(1, 60.0)
        await start(sessions, 0, SlowToClose())
        environment = SlowToClose()
        first, again = Client(sessions, 1, environment), Client(sessions, 1, environment)
        await asyncio.sleep(0.01)
        first.left.set()
        await asyncio.sleep(0.01)
        assert not again.asked.done()
        await sessions.cancel(("t", 0))
        assert await again.asked == await first.asked
        await sessions.close()

    asyncio.run(play())


def test_of_two_that_start_at_once_for_one_place_the_second_waits_for_it() -> None:
    async def play() -> None:
        sessions = Sessions(1, 60.0)
        clients = [Client(sessions, number, SlowToClose()) for number in range(2)]
        assert (await clients[0].asked)["status"] == "running"
        await asyncio.wait_for(sessions.cancel(("t", 1)), 5)
        with pytest.raises(Refused):
            await clients[1].asked
        await sessions.close()

    asyncio.run(play())


def test_cancelling_one_that_waits_ends_its_wait_at_once() -> None:
    async def play() -> None:
        sessions = Sessions(1, 60.0)
        await start(sessions, 0, SlowToClose())
        waiting = Client(sessions, 1, SlowToClose())
        await asyncio.sleep(0.01)
        await asyncio.wait_for(sessions.cancel(("t", 1)), 2)
        with pytest.raises(Refused):
            await waiting.asked
        await sessions.close()

    asyncio.run(play())


def test_final_answers_are_kept_for_the_newest_episodes_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions_module, "KEPT", 3)

    async def play() -> None:
        sessions = Sessions(9, 60.0)
        for number in range(6):
            await start(sessions, number, Faulty(EnvironmentFailure("over")))
            await sessions.interact(("t", number), SAID, 1, 9)
        again = [await final(sessions, number) for number in range(6)]
        assert again == [None, None, None, "task error", "task error", "task error"]
        monkeypatch.setattr(sessions_module, "KEPT_S", 0.0)
        await sessions.tend()
        assert [await final(sessions, number) for number in range(6)] == [None] * 6
        await sessions.close()

    asyncio.run(play())


async def final(sessions: Sessions, number: int) -> str | None:
    try:
        return str((await sessions.interact(("t", number), SAID, 1, 9))["status"])
    except Refused:
        return None
