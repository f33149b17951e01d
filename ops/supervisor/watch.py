"""The loop of the supervisor: polls its children, reads their logs, and counts the run's totals.

watch: poll the children ─▶ their logs ─▶ the run's row ─▶ say and show
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sqlalchemy.orm import Session

from agentrl.core import logging
from agentrl.core.errors import StoreError
from agentrl.core.types import RUN_OVER
from agentrl.db.queries import progress
from agentrl.db.queries.progress import Totals
from agentrl.db.registry import checkpoints
from agentrl.db.store import Store
from agentrl.db.transitions import runs
from agentrl.ops.supervisor.children import TRAINER
from agentrl.ops.supervisor.log_troubles import LogWatcher
from agentrl.ops.supervisor.supervisor import Supervisor

LOOK_S = 1.0  # between two looks at children and run
RESTS = 20.0  # times what counting a run took, before it is counted again

T = TypeVar("T")
U = TypeVar("U")
log = logging.get_logger()


@dataclass(frozen=True, slots=True)
class WatchOutput:
    """The output of a run: lines, totals, and repeated problems.

    `look_s`: time between two polls. `rests`: pause before the next count, as a multiple of its
    duration.
    """

    say: Callable[[str], None]
    show: Callable[[Totals], None]
    logs: LogWatcher
    look_s: float = LOOK_S
    rests: float = RESTS


def watch(
    supervisor: Supervisor, store: Store, run_id: str, stop: threading.Event, output: WatchOutput
) -> Totals:
    """Poll the children and the run until the run is over or `stop`; return the last totals.

    Counting takes at most 1/`output.rests` of the time, also for a long run. It waits for an
    unavailable database, like the children.
    """
    totals = store.ask(lambda session: progress.totals(session, run_id))
    due, away = -math.inf, False
    while not (totals.state in RUN_OVER or stop.wait(output.look_s)):
        supervisor.poll()
        for line in output.logs.look():
            output.say(line)
        began = time.monotonic()
        try:
            state = store.ask(lambda session: runs.run_state(session, run_id), patience_s=0.0)
            if away:
                output.say("the database is available again")
            away = False
            if state == totals.state and began < due:
                continue
            totals = store.ask(lambda session: progress.totals(session, run_id), patience_s=0.0)
            due = time.monotonic() + output.rests * (time.monotonic() - began)
        except StoreError as error:
            if not away:
                output.say(f"the run waits for its database: {error}")
            away = True
            continue
        output.show(totals)
    if totals.state in RUN_OVER:
        supervisor.run_is_over()
    return totals


def run_progress(store: Store, run_id: str, name: str) -> int | None:
    """Return the run's progress: version for the trainer, else episodes; None: unknown."""

    def far(session: Session) -> int:
        totals = progress.totals(session, run_id)
        return totals.version if name == TRAINER else totals.episodes

    return ask_or(store, far, None)


def serves(store: Store, run_id: str, since: float, name: str) -> bool:
    """Return whether a policy server of this name that started at `since` or later serves.

    False if the store is unavailable. `since`: on the database's clock.
    """
    question = partial(checkpoints.is_serving, run_id=run_id, name=name, since=since)
    return ask_or(store, question, False)


def ask_or(store: Store, question: Callable[[Session], T], otherwise: U) -> T | U:
    """Query the database; return `otherwise` if it is unavailable."""
    try:
        return store.ask(question, patience_s=0.0)
    except StoreError as error:
        log.warning("Database unavailable", error=str(error))
        return otherwise
