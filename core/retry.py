"""The retry policy: wait for an unavailable service, log it, and continue when it is back.

    work ─transient error─▶ log, pause ─▶ work again … until it succeeds, gives up, or `stop` is set

Each service names its own transient errors; `agentrl.db.failures.classify` those of the database.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from agentrl.core.errors import in_words
from agentrl.core.telemetry import outages

FOREVER = math.inf

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Random pauses of at most `first_s`, doubled each time up to `longest_s`.

    `stopping_s`: time left for retries of all calls together when the process is told to stop, from
    the start of the first call that fails. `remind_s`: time between two log lines of one outage;
    `silent`: no log, because the caller reports the outage. `from_failure`: the limit counts from
    the first failure instead of the start, for long calls. `sleep`: None waits for the stop event.
    """

    first_s: float = 0.1
    longest_s: float = 2.0
    stopping_s: float = 2.0
    remind_s: float = outages.REMIND_S
    silent: bool = False
    from_failure: bool = False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] | None = None


class Retry:
    """Repeats calls to one service while it is unavailable. Thread-safe.

    It logs when the first call starts to wait, once a minute, and when no call waits any more. If
    some calls succeed and others do not (reads of a read-only database), the service counts as
    unavailable. A call that gives up is logged in the same way, unless its limit is 0.
    """

    def __init__(
        self,
        service: str,
        transient: type[Exception] | Callable[[BaseException], bool],
        *,
        limit_s: float = FOREVER,
        stop: threading.Event | None = None,
        backoff: Backoff = Backoff(),
    ) -> None:
        """`service`: name for logs and metrics. `transient`: the errors after which a call is
        repeated, as a class or a function. `limit_s`: longest wait of one call.

        `stop`: set when the process shall end; calls then give up `backoff.stopping_s` later.
        """
        self.service = service
        self.limit_s = limit_s
        self._is_transient = _classifier(transient)
        self.stop = stop
        self._backoff = backoff
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self._reminded_at = 0.0
        self._waiting = 0  # calls
        self._stopping_at: float | None = None  # when calls began to fail after that

    def call(self, work: Callable[[], T], *, limit_s: float | None = None) -> T:
        """Return the result of `work`, which must be safe to repeat.

        Raises the last error when the limit is over, and a permanent error at once.
        """
        limit_s = self.limit_s if limit_s is None else limit_s
        began = self._backoff.clock()
        try:  # most calls succeed, and need no machinery of repeats
            answer = work()
        except Exception as error:
            if not self._is_transient(error):
                raise
            answer = self._repeat(work, error, began, limit_s)
        self._stopping_at = None
        if self._away_since is not None:
            self._end_waiting()
        return answer

    def _repeat(self, work: Callable[[], T], first: Exception, began: float, limit_s: float) -> T:
        """Repeat a call that began at `began` and failed with `first`, a transient error."""
        waits, asked_at = False, began

        def again() -> T:
            nonlocal asked_at
            if not waits:
                raise first
            asked_at = self._backoff.clock()
            return work()

        def begin_waiting(state: tenacity.RetryCallState) -> None:
            nonlocal waits
            with self._lock:
                self._waiting += not waits
            waits = True
            self._log_away(state.outcome.exception() if state.outcome else None)

        attempt = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._is_transient),
            wait=tenacity.wait_random_exponential(
                multiplier=self._backoff.first_s, max=self._backoff.longest_s
            ),
            stop=self._give_up(began, limit_s, lambda: asked_at),
            sleep=self._pause,
            before_sleep=begin_waiting,
            reraise=True,
        )
        try:
            return attempt(again)
        except Exception as last:
            if limit_s > 0.0 and self._is_transient(last):
                self._log_away(last)
            raise
        finally:
            if waits:
                with self._lock:
                    self._waiting -= 1

    def _give_up(
        self, began: float, limit_s: float, asked_at: Callable[[], float]
    ) -> Callable[[tenacity.RetryCallState], bool]:
        """`began`, `asked_at`: when the first and the latest try began."""
        deadline = None if self._backoff.from_failure else began + limit_s

        def give_up(state: tenacity.RetryCallState) -> bool:
            nonlocal deadline
            clock = self._backoff.clock()
            deadline = clock + limit_s if deadline is None else deadline
            if self.stop is not None and self.stop.is_set():
                deadline = min(deadline, self._last_try(asked_at()))
            return clock + state.upcoming_sleep > deadline

        return give_up

    def _last_try(self, asked_at: float) -> float:
        """Until when calls are repeated now that the process is told to stop.

        A try that began at `asked_at` and failed late has used that time already.
        """
        with self._lock:
            if self._stopping_at is None:
                self._stopping_at = asked_at
            return self._stopping_at + self._backoff.stopping_s

    def _pause(self, seconds: float) -> None:
        """Sleep, at most until the stop event."""
        if self._backoff.sleep is not None:
            self._backoff.sleep(seconds)
        elif self.stop is None:
            time.sleep(seconds)
        elif self.stop.wait(seconds):  # told to stop: a few short pauses more
            time.sleep(min(seconds, self._backoff.stopping_s / 10))

    def _log_away(self, error: BaseException | None) -> None:
        if self._backoff.silent:
            return
        with self._lock:
            clock = self._backoff.clock()
            if self._away_since is None:
                self._away_since = clock
            elif clock - self._reminded_at < self._backoff.remind_s:
                return
            self._reminded_at = clock
            waited_s = clock - self._away_since
        outages.report_away(self.service, waited_s, in_words(error) if error else "")

    def _end_waiting(self) -> None:
        with self._lock:
            since = self._away_since
            if since is None or self._waiting:  # another thread was faster, or waits still
                return
            self._away_since = None
        outages.report_available(self.service, self._backoff.clock() - since)


def _classifier(
    transient: type[Exception] | Callable[[BaseException], bool],
) -> Callable[[BaseException], bool]:
    if isinstance(transient, type):
        return lambda error: isinstance(error, transient)
    return transient
