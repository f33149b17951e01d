"""A session of an env server, its caller, and the server's limits."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentrl.envs.contract import Environment
from agentrl.envs.sandbox.container_owner import ContainerOwner

Key = tuple[str, int]  # task, session id


@dataclass(frozen=True, slots=True)
class Timings:
    """Limits of an env server, in seconds.

    `queue_s`: how long a start waits for a free place. `kept_s`: how long a final answer can be
    requested again. `close_s`: how long the server waits for running turns when it ends. `tend_s`:
    time between two checks for idle sessions. `call_s`: limit of one environment call. `beat_s`:
    time between two heartbeats to a controller.
    """

    queue_s: float = 30.0
    kept_s: float = 120.0
    close_s: float = 2.0
    tend_s: float = 1.0
    call_s: float = 240.0
    beat_s: float = 8.0


class Refused(Exception):
    """A refused request: an HTTP status and one line."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that starts an episode. `gone` ends when it disconnects. `owner`: its process, if
    known.
    """

    gone: Callable[[], Awaitable[None]]
    owner: ContainerOwner | None = None


@dataclass(slots=True, eq=False)
class Session:
    """One episode.

    `answer`: of the last turn, finished or running. `turn`: number of that turn. `asking`: clients
    that wait for the start. `waiting`: it has no place yet. `owner`: process that started it, if
    known. `hangs`: its environment did not answer in time; it is closed if it ever does.
    """

    key: Key
    index: int | str
    answer: asyncio.Task[dict[str, Any]]
    turn: int = 0
    asking: int = 0
    waiting: bool = False
    environment: Environment | None = None
    used: float = 0.0
    finished: bool = False
    owner: ContainerOwner | None = None
    hangs: bool = False
