"""A trainer that kills itself while its first update is published and the second is computed.

copied      its weights are copied, nothing is written
written     its checkpoint is complete, its rows are being written
committing  its rows are written, not committed
committed   its rows are committed, nothing is announced
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from inline import DeferredExecutor
from run_transitions import World
from sqlalchemy import event
from training_loops import HookedLearner, run_loop

from agentrl.db.store import Store, open_store

MOMENTS = ("copied", "written", "committing", "committed")


def kill(*_given: object) -> None:
    """End the process at once, with all its threads."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(store: Store, moment: str) -> None:
    """Kill the process at a moment of the transaction that writes an update."""
    thread = 0

    @event.listens_for(store.engine, "before_cursor_execute")
    def look(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        nonlocal thread
        if statement.startswith("INSERT INTO updates "):
            thread = threading.get_ident()
            if moment == "written":
                kill()

    @event.listens_for(store.engine, "commit")
    def end(_connection: Any) -> None:
        if threading.get_ident() == thread:
            kill()


def main(url: str, run_id: str, model: str, home: str, moment: str) -> None:
    store = open_store(url)
    world = World(store, run_id, f"worker-{run_id}")
    if moment == "copied":
        learner = HookedLearner(Path(model), {2: kill})
        run_loop(world, learner, Path(home), publishing=DeferredExecutor())
        return
    learner = HookedLearner(Path(model), {2: threading.Event().wait})
    if moment == "committed":
        run_loop(world, learner, Path(home), announce=kill)
    kill_at(store, moment)
    run_loop(world, learner, Path(home))


if __name__ == "__main__":
    main(*sys.argv[1:])
