"""The sessions of an env server. All state is used on the event loop's thread only.

    start ─▶ wait for a place ─▶ running ⇄ one turn in a thread ─▶ finished, its answer kept a while
                                    └─ idle too long, cancelled, failed ─▶ closed

A request with a turn number may be repeated, even while the first is running: it is applied once
and gets the same answer. A start with a higher fence lets another attempt go on with a session: it
gets the answers to the turns that were applied, and the former attempt is refused.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from agentrl.core.errors import AgentRLError, EnvironmentFailure, ItemError, in_words
from agentrl.core.logging import get_logger
from agentrl.core.types import Status
from agentrl.envs.contract import Environment, Outcome
from agentrl.envs.outcome_check import check_outcome
from agentrl.envs.sandbox.channel import Overrun
from agentrl.envs.server import wire
from agentrl.envs.server.session import Caller, Key, Refused, Session, Timings
from agentrl.envs.server.threads import Threads

KEPT = 1000  # final answers at most, the newest

log = get_logger()


class Sessions:
    """The sessions. `concurrency`: simultaneous episodes.

    `idle_s`: episodes without a request for this long are cancelled. `kept`: number of recent final
    answers that can be requested again.
    """

    def __init__(
        self, concurrency: int, idle_s: float, timings: Timings | None = None, *, kept: int = KEPT
    ) -> None:
        self.concurrency = concurrency
        self.draining = False
        self.threads = Threads()
        self._idle_s = idle_s
        self.timings = timings or Timings()
        self._most_kept = kept
        self._open: dict[Key, Session] = {}
        self._kept: deque[Session] = deque()
        self._places = asyncio.Semaphore(concurrency)

    async def start(
        self,
        key: Key,
        index: int | str,
        make: Callable[[], Environment],
        *,
        repeatable: bool,
        caller: Caller,
    ) -> tuple[dict[str, Any], int]:
        """Start an episode, or go on with one; return the first answer and the number of its turns.

        Raises Refused: full, used id, unknown item, another attempt uses it.

        If a client disconnects while it waits for a place, its start is dropped.
        """
        session = self._open.get(key)
        if session is None or (session.finished and not repeatable):
            if self.draining:
                raise Refused(503, "the env server is ending")
            session = Session(key, index, {0: _task(self._begin(key, make))})
            self._open[key] = session
            session.owner, session.fence = caller.owner, caller.fence
            session.waiting = self._places.locked()
            if not session.waiting:  # taken now: two starts at once must not both count on it
                await self._places.acquire()
        elif not repeatable or 0 not in session.answers:
            raise Refused(400, f"session {key[1]} exists already")
        session.hand_over(caller)
        if session.waiting:
            await self._waited(session, caller.gone)
        applied = session.turn
        return await asyncio.shield(session.answers[0]), applied

    async def interact(
        self,
        key: Key,
        message: wire.AssistantMessage,
        turn: int | None,
        max_turns: int,
        fence: int | None = None,
    ) -> dict[str, Any]:
        """Apply a turn; return its answer.

        Raises Refused: unknown session, busy, wrong turn, another attempt uses it.

        A client that numbers its turns counts them itself; for others `max_turns` is the limit.
        """
        session = self._open.get(key)
        if session is None:
            raise Refused(400, wire.NO_SESSION)
        session.obey(fence)
        if turn in session.answers:
            return await asyncio.shield(session.answers[turn])
        if session.finished:
            raise Refused(400, wire.NO_SESSION)
        if not session.answer.done():
            raise Refused(400, f"session {key[1]} is busy")
        if turn is not None and turn != session.turn + 1:
            raise Refused(400, f"turn {turn} of session {key[1]}: {session.turn + 1} is next")
        last = turn is None and session.turn + 1 >= max_turns
        work = self._apply(session, message, last=last, counted=turn is not None)
        session.next_turn(_task(work))
        return await asyncio.shield(session.answer)

    async def cancel(self, key: Key, fence: int | None = None) -> None:
        """End an episode after its running turn. Raises Refused."""
        await self.wait_idle(key, fence)

    def wait_idle(self, key: Key, fence: int | None = None) -> Awaitable[None]:
        """Remove an episode from the list; await its end. Raises Refused."""
        session = self._open.get(key)
        if session is None or session.finished:
            raise Refused(400, wire.NO_SESSION)
        if fence is not None:
            session.obey(fence)
        del self._open[key]
        return self._end(session)

    async def cancel_all(self, task: str | None = None) -> None:
        """End all episodes (of a task)."""
        keys = [key for key in self._open if task in (None, key[0])]
        await asyncio.gather(*(self._end(self._open.pop(key)) for key in keys))

    def running(self, task: str | None = None) -> dict[int, int | str]:
        """Return session id → index of unfinished episodes."""
        return {
            key[1]: session.index
            for key, session in self._open.items()
            if not session.finished and task in (None, key[0])
        }

    async def tend(self) -> None:
        """Cancel idle episodes, and forget old final answers."""
        now = time.monotonic()
        ended_owners = {
            each for each in {s.owner for s in self._open.values()} if each and each.gone()
        }
        for session in self._open.values():
            if session.owner in ended_owners and session.orphan_since is None:
                session.orphan_since = now
        idle = [
            session
            for session in self._open.values()
            if session.answer.done() and not session.finished
            if self._is_abandoned(session, now) or now - session.used > self._idle_s
        ]
        for session in idle:
            task, session_id = session.key
            log.warning("Idle session cancelled", task=task, session_id=session_id)
            del self._open[session.key]
        while self._kept and now - self._kept[0].used > self.timings.kept_s:
            self._drop(self._kept.popleft())
        await asyncio.gather(*(self._end(session) for session in idle))

    def _is_abandoned(self, session: Session, now: float) -> bool:
        """Return whether its owner has ended and no other attempt has taken it over."""
        if session.orphan_since is None:
            return False
        return session.fence is None or now - session.orphan_since > self.timings.orphan_s

    async def close(self) -> None:
        """Cancel all episodes; a hanging turn ends with the process."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.cancel_all(), self.timings.close_s)
        self.threads.close()

    async def _waited(self, session: Session, disconnected: Callable[[], Awaitable[None]]) -> None:
        """Wait while the client is connected; drop a start whose clients have all disconnected."""
        session.asking += 1
        leaving = asyncio.ensure_future(disconnected())
        try:
            await asyncio.wait((session.answer, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            session.asking -= 1
            if session.waiting and not session.asking:
                session.answer.cancel()

    async def _end(self, session: Session) -> None:
        """Finish an episode that was removed from the list, after its running turn."""
        if session.waiting:
            session.answer.cancel()
        with contextlib.suppress(Exception):  # the request for that turn gets the error
            await asyncio.shield(session.answer)
        await self._finish(session)

    async def _begin(self, key: Key, make: Callable[[], Environment]) -> dict[str, Any]:
        session = self._open[key]
        try:
            if session.waiting:
                await asyncio.wait_for(self._places.acquire(), self.timings.queue_s)
        except (TimeoutError, asyncio.CancelledError):
            session.finished = True
            self._drop(session)
            raise Refused(406, f"full: {self.concurrency} sessions run") from None
        finally:
            session.waiting = False

        def begin() -> dict[str, Any]:
            session.environment = make()
            first = session.environment.start()
            return wire.answer(first.messages, session.environment.tools, terms=first.terms)

        try:
            return await self._guarded(session, begin)
        except Refused:
            self._drop(session)
            raise

    async def _apply(
        self, session: Session, message: wire.AssistantMessage, *, last: bool, counted: bool
    ) -> dict[str, Any]:
        """Apply a turn. `counted`: the client numbers its turns, and knows our additions."""
        environment = session.environment
        if environment is None:
            raise Refused(400, wire.NO_SESSION)
        calls, ids = wire.turn(message)

        def apply() -> dict[str, Any]:
            try:
                outcome = check_outcome(environment.call(calls))
            except Overrun as error:
                log.info("Sandbox exceeded a limit", task=session.key[0], error=str(error))
                outcome = Outcome((), done=True, status=Status.TASK_LIMIT)
            if outcome.follows is not None and not counted:
                raise EnvironmentFailure(
                    "the episode branches, which needs a client that numbers its turns"
                )
            return wire.outcome_answer(outcome, environment.tools, ids)

        answer = await self._guarded(session, apply)
        if last and not answer["finish"]:
            answer |= {"finish": True, "status": wire.STATUSES[Status.TASK_LIMIT]}
        if answer["finish"]:
            await self._finish(session)
        return answer

    async def _guarded(
        self, session: Session, work: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Run the work; a failure ends the episode and becomes the protocol's task error."""
        try:
            return await session.run(work, self.threads, self.timings.call_s)
        except ItemError as error:
            await self._finish(session)
            raise Refused(400, str(error)) from error
        except Exception as error:  # an episode's failure is its own
            known = isinstance(error, AgentRLError)
            text = in_words(error)
            log.warning("Episode failed", task=session.key[0], error=text, exc_info=not known)
            await self._finish(session)
            return wire.failure_answer(Status.ENV_ERROR, text)
        finally:
            session.used = time.monotonic()

    async def _finish(self, session: Session) -> None:
        """Close its environment and release its place, once."""
        if session.finished:
            return
        session.finished = True
        try:
            if session.environment is not None and not session.hangs:
                close = partial(_close, session.environment)
                await session.run(close, self.threads, self.timings.call_s)
        except Exception as error:  # an episode's failure is its own
            text = in_words(error)
            log.warning("Episode not closed", task=session.key[0], error=text, exc_info=True)
        finally:
            session.environment = session.environment if session.hangs else None
            self._places.release()
            self._kept.append(session)
            while len(self._kept) > self._most_kept:
                self._drop(self._kept.popleft())

    def _drop(self, session: Session) -> None:
        """Remove it from the list, unless its id now belongs to another."""
        if self._open.get(session.key) is session:
            del self._open[session.key]


def _close(environment: Environment) -> dict[str, Any]:
    environment.close()
    return {}


def _task(work: Any) -> asyncio.Task[dict[str, Any]]:
    return asyncio.get_running_loop().create_task(work)
