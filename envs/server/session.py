"""One episode of an env server, who asked for it, and the limits that hold for all."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentrl.envs.contract import Environment
from agentrl.envs.sandbox.owner import Owner

Key = tuple[str, int]  # task, session id


@dataclass(frozen=True, slots=True)
class Timings:
    """Limits of an env server, in seconds.

    `queue_s`: how long a start waits for a place; `kept_s`: how long a final answer can be had
    again; `close_s`: how long the end of the server waits for a turn under way; `tend_s`: between
    two looks at what is idle; `call_s`: how long an environment may take for one call; `beat_s`:
    between two heartbeats to a controller.
    """

    queue_s: float = 30.0
    kept_s: float = 120.0
    close_s: float = 2.0
    tend_s: float = 1.0
    call_s: float = 240.0
    beat_s: float = 8.0


class Refused(Exception):
    """A request that is answered with an HTTP status and one line."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class Caller:
    """Who starts an episode. `gone` ends when it has hung up; `owner`: its process, where told."""

    gone: Callable[[], Awaitable[None]]
    owner: Owner | None = None


@dataclass(slots=True, eq=False)
class Session:
    """One episode.

    `answer`: of the last turn, done or under way; `turn`: that turn's number; `asking`: clients
    that wait for its start; `waiting`: it has no place yet; `owner`: the process that began it,
    where it said so; `hangs`: its environment did not answer in time and is closed if it ever does.
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
    owner: Owner | None = None
    hangs: bool = False
