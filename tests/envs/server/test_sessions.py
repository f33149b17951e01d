"""Sessions that end twice at once, break, wait in vain, or are asked for again too late."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.core.processes.process import process_began
from agentrl.envs.contract import Environment, Message, Observation, Outcome, Tool, ToolCall
from agentrl.envs.sandbox.container_owner import ContainerOwner
from agentrl.envs.server import wire
from agentrl.envs.server.session import Caller, Refused, Timings
from agentrl.envs.server.sessions import Sessions


class Closing:
    """An Environment that counts how often it is closed, each time once `may_close`."""

    tools: tuple[Tool, ...] = ()

    def __init__(self) -> None:
        self.closed = 0
        self.closing, self.may_close = threading.Event(), threading.Event()
        self.may_close.set()

    def start(self) -> Observation:
        return Observation(())

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:  # noqa: ARG002
        return Outcome((Message("user", "more"),))

    def close(self) -> None:
        self.closing.set()
        self.may_close.wait()
        self.closed += 1


async def start(
    sessions: Sessions, number: int, environment: Environment, owner: ContainerOwner | None = None
) -> dict[str, Any]:
    answer, _ = await attach(sessions, number, environment, owner)
    return answer


async def attach(
    sessions: Sessions,
    number: int,
    environment: Environment,
    owner: ContainerOwner | None = None,
    fence: int | None = None,
) -> tuple[dict[str, Any], int]:
    return await sessions.start(
        ("t", number),
        0,
        lambda: environment,
        repeatable=fence is not None,
        caller=Caller(asyncio.Event().wait, owner, fence),
    )


async def begun(sessions: Sessions) -> list[Closing]:
    environments = [Closing(), Closing()]
    for number, environment in enumerate(environments):
        await start(sessions, number, environment)
    return environments


def test_tending_survives_a_session_that_is_cancelled_meanwhile() -> None:
    async def race() -> list[Closing]:
        sessions = Sessions(4, 0.0)
        environments = await begun(sessions)
        for each in environments:
            each.may_close.clear()
        tending = asyncio.ensure_future(sessions.tend())
        await asyncio.to_thread(environments[0].closing.wait)
        with contextlib.suppress(Refused):
            await sessions.cancel(("t", 1))
        for each in environments:
            each.may_close.set()
        await tending
        assert sessions.running() == {}
        return environments

    assert [environment.closed for environment in asyncio.run(race())] == [1, 1]


@pytest.fixture
def ended() -> ContainerOwner:
    """A process of this machine that has ended."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    began = process_began(dead.pid) or 0
    dead.wait()
    return replace(ContainerOwner.this(), pid=dead.pid, began=began)


def test_the_sessions_of_a_process_that_ended_free_their_places(ended: ContainerOwner) -> None:
    here = ContainerOwner.this()

    async def tended() -> dict[int, int | str]:
        sessions = Sessions(4, 60.0)
        owners = [ended, here, None, replace(here, host="x")]
        for number, owner in enumerate(owners):
            await start(sessions, number, Closing(), owner)
        await sessions.tend()
        return sessions.running()

    assert set(asyncio.run(tended())) == {1, 2, 3}, "of another host nothing can be known"


@pytest.mark.parametrize(("orphan_s", "left"), [(60.0, {0: 0}), (-1.0, {})])
def test_a_session_with_a_fence_waits_a_while_for_its_next_attempt(
    ended: ContainerOwner, orphan_s: float, left: dict[int, int]
) -> None:
    async def tended() -> dict[int, int | str]:
        sessions = Sessions(4, 60.0, Timings(orphan_s=orphan_s))
        await attach(sessions, 0, Closing(), ended, fence=1)
        await sessions.tend()
        return sessions.running()

    assert asyncio.run(tended()) == left


def test_an_attempt_goes_on_with_a_session_and_its_owner_is_the_new_one(
    ended: ContainerOwner,
) -> None:
    async def handed_over() -> None:
        sessions, environment = Sessions(4, 60.0, Timings(orphan_s=0.0)), Counted()
        await attach(sessions, 0, environment, ended, fence=1)
        said = [await sessions.interact(("t", 0), SAID, turn, 9, 1) for turn in (1, 2)]
        assert await attach(sessions, 0, Closing(), ContainerOwner.this(), fence=3) == (
            await sessions.interact(("t", 0), SAID, 0, 9, 3),
            2,
        )
        again = [await sessions.interact(("t", 0), SAID, turn, 9, 3) for turn in (1, 2, 3)]
        assert again[:2] == said
        assert [each["messages"][0]["content"] for each in again] == ["1", "2", "3"]
        await sessions.tend()
        assert list(sessions.running()) == [0]
        await sessions.close()

    asyncio.run(handed_over())


def test_a_former_attempt_is_refused() -> None:
    async def late() -> None:
        sessions, environment = Sessions(4, 60.0), Counted()
        await attach(sessions, 0, environment, fence=1)
        await attach(sessions, 0, environment, fence=2)
        for asked in (
            sessions.interact(("t", 0), SAID, 1, 9, 1),
            sessions.interact(("t", 0), SAID, 1, 9),
            sessions.cancel(("t", 0), 1),
            attach(sessions, 0, environment, fence=1),
        ):
            with pytest.raises(Refused, match="attempt 2 uses session 0") as refused:
                await asked
            assert refused.value.code == 409
        assert environment.turns == 0
        await sessions.cancel(("t", 0), 2)

    asyncio.run(late())


def test_two_that_cancel_everything_at_once_end_each_session_once() -> None:
    async def race() -> list[Closing]:
        sessions = Sessions(4, 60.0)
        environments = await begun(sessions)
        for each in environments:
            each.may_close.clear()
        ends = asyncio.gather(sessions.cancel_all(), sessions.close())
        await asyncio.to_thread(environments[0].closing.wait)
        for each in environments:
            each.may_close.set()
        await ends
        with pytest.raises(Refused):
            await sessions.cancel(("t", 0))
        return environments

    assert [environment.closed for environment in asyncio.run(race())] == [1, 1]


class Counted(Closing):
    """Answers with the number of the turn."""

    turns = 0

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:  # noqa: ARG002
        self.turns += 1
        return Outcome((Message("user", str(self.turns)),))


class Scripted(Closing):
    """Returns the given outcome from every call, or raises the given error."""

    def __init__(self, answer: Outcome | BaseException) -> None:
        super().__init__()
        self._answer = answer

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:  # noqa: ARG002
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


SAID = wire.AssistantMessage("assistant", "hm")


class Branching(Closing):
    """An Environment whose second answer follows its first turn."""

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:  # noqa: ARG002
        return Outcome((Message("user", "more"),), follows=1)


def test_an_episode_that_branches_ends_for_a_client_that_only_appends() -> None:
    async def play(turn: int | None) -> dict[str, Any]:
        sessions = Sessions(4, 60.0)
        await start(sessions, 0, Branching())
        answer = await sessions.interact(("t", 0), SAID, turn, 9)
        await sessions.close()
        return answer

    assert asyncio.run(play(1))["follows"] == 1
    ended = asyncio.run(play(None))
    assert (ended["status"], ended["finish"]) == (wire.FAILED, True)
    assert "the episode branches" in ended["error"]


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(1),
        StopIteration(),
        RuntimeError(),
        MemoryError(),
        asyncio.CancelledError(),
        BaseExceptionGroup("two", [GeneratorExit()]),
    ],
)
def test_whatever_an_environment_raises_ends_its_own_episode_alone(error: BaseException) -> None:
    async def play() -> dict[str, Any]:
        sessions = Sessions(4, 60.0)
        faulty, other = Scripted(error), Closing()
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
        await start(sessions, 0, Scripted(error))
        answer = await sessions.interact(("t", 0), SAID, 1, 9)
        await sessions.close()
        return answer

    assert asyncio.run(play())["error"] == told


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome((), done=True, reward=np.float32(1), metrics={"n": np.int64(3)}), ""),  # type: ignore[arg-type]
        (Outcome((), done=True, metrics={"n": float("nan")}), "the environment's metrics['n'] is"),
        (Outcome(()), "the environment gave no message and is not done"),
    ],
)
def test_an_answer_is_encoded_or_ends_its_episode_with_the_reason(
    outcome: Outcome, error: str
) -> None:
    async def play() -> wire.EnvOut:
        sessions = Sessions(1, 60.0)
        await start(sessions, 0, Scripted(outcome))
        answer = await sessions.interact(("t", 0), SAID, 1, 9)
        await sessions.close()
        return wire.decode(wire.encode(answer), wire.EnvOut)

    answer = asyncio.run(play())
    assert answer.finish
    assert (answer.status == wire.FAILED) == bool(error)
    assert answer.error.startswith(error)


def test_an_item_that_breaks_at_a_turn_is_refused_and_frees_its_place() -> None:
    async def play() -> None:
        sessions = Sessions(1, 60.0)
        await start(sessions, 0, Scripted(ItemError("no such table")))
        with pytest.raises(Refused, match="no such table"):
            await sessions.interact(("t", 0), SAID, 1, 9)
        await asyncio.wait_for(start(sessions, 1, Closing()), 5)
        await sessions.close()

    asyncio.run(play())


def test_an_environment_that_hangs_is_given_up_and_closed_should_it_come_back() -> None:
    class Hanging(Closing):
        def start(self) -> Observation:
            self.may_start.wait()
            return super().start()

        may_start = threading.Event()

    async def play() -> None:
        sessions, hanging = Sessions(1, 60.0, Timings(call_s=0.05)), Hanging()
        answer = await start(sessions, 0, hanging)
        assert (answer["status"], answer["error"]) == (
            "task error",
            "a call of the environment took over 0.05 s",
        )
        assert not sessions._places.locked()
        assert hanging.closed == 0, "its thread is in a call"
        hanging.may_start.set()
        await asyncio.to_thread(hanging.closing.wait)
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


async def settled() -> None:
    """Every task of the loop has gone on to where it waits for another thread or an event."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_client_that_hangs_up_while_it_waits_gives_up_its_place_in_the_queue() -> None:
    async def play() -> list[Closing]:
        sessions = Sessions(1, 60.0)
        environments = [Closing() for _ in range(3)]
        await start(sessions, 0, environments[0])
        impatient, patient = (Client(sessions, n, environments[n]) for n in (1, 2))
        await settled()
        impatient.left.set()
        with pytest.raises(Refused) as refused:
            await impatient.asked
        assert refused.value.code == 406
        assert list(sessions.running()) == [0, 2]
        await sessions.cancel(("t", 0))
        assert (await patient.asked)[0]["status"] == "running"
        await sessions.close()
        return environments

    assert [each.closed for each in asyncio.run(play())] == [1, 0, 1]


def test_a_start_is_given_up_only_once_nobody_waits_for_it() -> None:
    async def play() -> None:
        sessions = Sessions(1, 60.0)
        await start(sessions, 0, Closing())
        environment = Closing()
        first, again = Client(sessions, 1, environment), Client(sessions, 1, environment)
        await settled()
        first.left.set()
        await settled()
        assert not again.asked.done()
        await sessions.cancel(("t", 0))
        assert await again.asked == await first.asked
        await sessions.close()

    asyncio.run(play())


def test_of_two_that_start_at_once_for_one_place_the_second_waits_for_it() -> None:
    async def play() -> None:
        sessions = Sessions(1, 60.0)
        clients = [Client(sessions, number, Closing()) for number in range(2)]
        assert (await clients[0].asked)[0]["status"] == "running"
        await asyncio.wait_for(sessions.cancel(("t", 1)), 5)
        with pytest.raises(Refused):
            await clients[1].asked
        await sessions.close()

    asyncio.run(play())


def test_cancelling_one_that_waits_ends_its_wait_at_once() -> None:
    async def play() -> None:
        sessions = Sessions(1, 60.0)
        await start(sessions, 0, Closing())
        waiting = Client(sessions, 1, Closing())
        await settled()
        await asyncio.wait_for(sessions.cancel(("t", 1)), 2)
        with pytest.raises(Refused):
            await waiting.asked
        await sessions.close()

    asyncio.run(play())


def test_final_answers_are_kept_for_the_newest_episodes_only() -> None:
    async def play() -> None:
        sessions = Sessions(9, 60.0, kept=3)
        for number in range(6):
            await start(sessions, number, Scripted(EnvironmentFailure("over")))
            await sessions.interact(("t", number), SAID, 1, 9)
        again = [await final(sessions, number) for number in range(6)]
        assert again == [None, None, None, "task error", "task error", "task error"]
        await sessions.close()

    asyncio.run(play())


@pytest.mark.parametrize(("kept_s", "told"), [(60.0, "task error"), (-1.0, None)])
def test_a_final_answer_is_kept_for_a_while(kept_s: float, told: str | None) -> None:
    async def play() -> None:
        sessions = Sessions(9, 60.0, Timings(kept_s=kept_s))
        await start(sessions, 0, Scripted(EnvironmentFailure("over")))
        await sessions.interact(("t", 0), SAID, 1, 9)
        await sessions.tend()
        assert await final(sessions, 0) == told
        await sessions.close()

    asyncio.run(play())


async def final(sessions: Sessions, number: int) -> str | None:
    try:
        return str((await sessions.interact(("t", number), SAID, 1, 9))["status"])
    except Refused:
        return None
