"""A session of an env server, its caller, and the server's limits."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.contract import Environment
from agentrl.envs.sandbox.container_owner import ContainerOwner
from agentrl.envs.server.threads import Threads

Key = tuple[str, int]  # task, session id


@dataclass(frozen=True, slots=True)
class Timings:
    """Limits of an env server, in seconds.

    `queue_s`: how long a start waits for a free place. `kept_s`: how long a final answer can be
    requested again. `close_s`: how long the server waits for running turns when it ends. `tend_s`:
    time between two checks for idle sessions. `call_s`: limit of one environment call. `beat_s`:
    time between two heartbeats to a controller. `orphan_s`: how long a session with a fence waits
    for its next attempt after the process of the last one ended.
    """

    queue_s: float = 30.0
    kept_s: float = 120.0
    close_s: float = 2.0
    tend_s: float = 1.0
    call_s: float = 240.0
    beat_s: float = 8.0
    orphan_s: float = 60.0


class Refused(Exception):
    """A refused request: an HTTP status and one line."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that starts an episode. `gone` ends when it disconnects. `owner`: its process, if
    known. `fence`: of its attempt; a newer attempt may go on with the session.
    """

    gone: Callable[[], Awaitable[None]]
    owner: ContainerOwner | None = None
    fence: int | None = None


@dataclass(slots=True, eq=False)
class Session:
    """One episode.

    `answers`: of the turns that may be asked for again, finished or running: the last one, and with
    a fence all. `turn`: number of the last turn. `asking`: clients that wait for the start.
    `waiting`: it has no place yet. `owner`: process that started it, if known. `fence`: of the
    newest attempt. `orphan_since`: monotonic time at which its owner was found to have ended.
    `hangs`: its environment did not answer in time; it is closed if it ever does.
    """

    key: Key
    index: int | str
    answers: dict[int, asyncio.Task[dict[str, Any]]]
    turn: int = 0
    asking: int = 0
    waiting: bool = False
    environment: Environment | None = None
    used: float = 0.0
    finished: bool = False
    owner: ContainerOwner | None = None
    fence: int | None = None
    orphan_since: float | None = None
    hangs: bool = False

    @property
    def answer(self) -> "asyncio.Task[dict[str, Any]]":
        """Return the answer of the last turn."""
        return self.answers[self.turn]

    def next_turn(self, answer: "asyncio.Task[dict[str, Any]]") -> None:
        """Begin a turn."""
        if self.fence is None:
            self.answers.clear()
        self.turn += 1
        self.answers[self.turn] = answer

    def obey(self, fence: int | None) -> None:
        """Raise Refused for a request of an attempt that another one has replaced."""
        if self.fence is not None and fence != self.fence:
            raise Refused(409, f"attempt {self.fence} uses session {self.key[1]}, not {fence}")

    def hand_over(self, caller: Caller) -> None:
        """Let a newer attempt go on with the session. Raises Refused for an older one."""
        if self.fence is not None and caller.fence is not None and caller.fence > self.fence:
            self.fence, self.owner, self.orphan_since = caller.fence, caller.owner, None
        self.obey(caller.fence)

    async def run(
        self, work: Callable[[], dict[str, Any]], threads: Threads, limit_s: float
    ) -> dict[str, Any]:
        """Run work on a thread; raises its errors, and EnvironmentFailure after `limit_s`."""
        result = threads.run(work)
        await asyncio.wait((result,), timeout=limit_s)
        if result.done():
            return result.result()

        def close_at_last(late: "asyncio.Future[dict[str, Any]]") -> None:
            late.exception()  # read it, or asyncio logs it; the request has already failed
            if self.environment is not None:
                threads.run(self.environment.close)
                self.environment = None

        self.hangs = True
        result.add_done_callback(close_at_last)
        raise EnvironmentFailure(f"a call of the environment took over {limit_s:g} s")
