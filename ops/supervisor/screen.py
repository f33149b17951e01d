"""The screen output of `agentrl up`: totals, stalls, problems, how the run ended."""

import math
import time
from collections.abc import Callable

from sqlalchemy.orm import Session

from agentrl.core.types import RUN_OVER, RunState
from agentrl.db.queries import progress
from agentrl.db.queries.progress import Totals
from agentrl.db.registry import checkpoints, outages
from agentrl.db.store import Store
from agentrl.db.transitions import runs
from agentrl.ops.supervisor.watch import ask_or

EVERY_S = 15.0  # between two lines of totals while the version stays
STALL_S = 300.0  # without an episode or an update: worth a word


def newest(store: Store, run_id: str, last: Totals) -> Totals:
    """Return the totals after a clean end, which may commit an update; or `last`."""
    return ask_or(store, lambda session: progress.totals(session, run_id), last)


def _goes_on_from(store: Store, run_id: str, version: int) -> int:
    """Return the version from which a new trainer would resume, at most `version`."""

    def snapshot(session: Session) -> int:
        newest = checkpoints.latest_snapshot(session, run_id)
        return newest.version if newest else 0

    return min(ask_or(store, snapshot, version), version)


def how_it_ended(store: Store, run_id: str, last: Totals) -> str:
    """Describe how the run was left, and whether updates after the last snapshot are lost."""
    if last.state in RUN_OVER:
        return f"{last.state} at version {last.version}"
    state = "stopped" if last.state == RunState.RUNNING else last.state
    saved = _goes_on_from(store, run_id, last.version)
    less = f"; it will resume from version {saved}" if saved < last.version else ""
    return f"{state} at version {last.version}{less}"


class StallGuard:
    """Notices if a running run had neither an episode nor an update for `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._seen: tuple[int, int] | None = None
        self._since = time.monotonic()

    def words(self, totals: Totals) -> str:
        """Return a warning, once every `limit_s`; empty while the run makes progress."""
        moved = (totals.episodes, totals.version)
        stalled = moved == self._seen and totals.state == RunState.RUNNING
        if stalled and time.monotonic() - self._since <= self._limit_s:
            return ""
        self._seen, self._since = moved, time.monotonic()
        return f"no episode and no update for {self._limit_s:.0f} s" if stalled else ""


def _success(store: Store, run_id: str) -> str:
    """Return the recent success by task, to print with a version; empty if unknown."""
    none: dict[str, float] = {}
    success = ask_or(store, lambda s: progress.recent_success(s, run_id), none)
    return f" · recent success {progress.percent_by_task(success)}" if success else ""


def _problems(session: Session, run_id: str) -> dict[str, str]:
    """Return what policy servers say, and processes on other machines."""
    servers = checkpoints.server_problems(session, run_id)
    problems = {f"policy server {name}": problem for name, problem in servers.items()}
    for each in outages.read_outages(session, run_id):
        problems[f"{each.process} waits for {each.service}"] = each.error
    return problems


class ProgressPrinter:
    """Prints what happens to a run: problems, pauses, totals, updates trained again, stalls.

    Totals are printed with each version, and every `EVERY_S` seconds if they have changed.
    `resume`: the command that resumes a paused run.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        store: Store,
        run_id: str,
        resume: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._store, self._run_id = say, store, run_id
        self._resume, self._clock = resume, clock
        self._guard = StallGuard(STALL_S)
        self._problems: dict[str, str] = {}
        self._state, self._version, self._counts = "", -1, (0, 0, 0)
        self._printed_at = -math.inf

    def __call__(self, totals: Totals) -> None:
        self._show_problems()
        self._show_pause(totals)
        self._show_totals(totals)
        if words := self._guard.words(totals):
            self._say(f"{words}; see the logs, and `agentrl status`")

    def _show_problems(self) -> None:
        before, run_id = self._problems, self._run_id
        self._problems = ask_or(self._store, lambda session: _problems(session, run_id), before)
        for name, problem in sorted(self._problems.items()):
            if problem != before.get(name):
                self._say(f"{name}: {problem}")

    def _show_pause(self, totals: Totals) -> None:
        before, self._state = self._state, totals.state
        if totals.state == RunState.PAUSED != before:
            run_id = self._run_id
            reason = ask_or(self._store, lambda s: runs.state_reason(s, run_id), "")
            why = f" ({reason})" if reason else ""
            self._say(f"the run is paused{why}; resume it with: {self._resume}")

    def _show_totals(self, totals: Totals) -> None:
        before, self._version = self._version, totals.version
        if totals.version < before:
            begins = _goes_on_from(self._store, self._run_id, totals.version)
            undone = f"{before - begins} update{'s are' if before - begins > 1 else ' is'}"
            self._say(f"resumes from version {begins}: {undone} trained again")
        counts = (totals.episodes, totals.sampled_tokens, totals.trained_tokens)
        is_due = self._clock() - self._printed_at >= EVERY_S and counts != self._counts
        if totals.version != before or is_due:
            self._counts, self._printed_at = counts, self._clock()
            self._say(
                f"version {totals.version} · {totals.episodes} episodes · "
                f"{totals.sampled_tokens:,} sampled tokens · {totals.trained_tokens:,} trained · "
                f"created {totals.seconds:.0f} s ago{_success(self._store, self._run_id)}"
            )
