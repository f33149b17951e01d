"""The evaluator process: builds the evaluation matrix and runs
ops/evaluation/checkpoint_evaluator.py.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import closing

from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.core.logging import get_logger
from agentrl.core.processes.process import TERMINATED, lower_priority
from agentrl.core.types import RUN_OVER
from agentrl.db.transitions import evaluations, runs
from agentrl.ops.evaluation.checkpoint_evaluator import LOOK_S, eval_request, follow
from agentrl.ops.evaluation.command import Matrix, make_plans, only
from agentrl.ops.evaluation.evaluate import work_of
from agentrl.ops.evaluation.target import resolve
from agentrl.ops.runs.begin import open_run
from agentrl.ops.tasks.task_sources import task_sources

GRACE_S = 3.5  # between SIGTERM and leaving whatever an environment still waits for

log = get_logger()


def run(config: Config, stop: threading.Event) -> None:
    """Evaluate checkpoints until the run is over or SIGTERM, with low CPU priority."""
    lower_priority(config.eval.nice)
    evaluate_run(config, stop)


def evaluate_run(config: Config, stop: threading.Event, look_s: float = LOOK_S) -> None:
    """Evaluate until the run is over or `stop`. Raises ConfigError, ItemError, StoreError."""
    if not config.eval.every:
        raise ConfigError(
            "eval.every is 0: there is nothing to evaluate", hint="set it to a number of updates"
        )
    ended = threading.Event()
    threading.Thread(target=_leave_in_time, args=(stop, ended), daemon=True).start()
    own = config.as_evaluated()
    plans = make_plans(own, eval_request(config))
    found = task_sources(only(own, plans))
    work = {plan: work_of(plan, found[plan.task]) for plan in plans}
    with (
        open_run(own, stop) as here,
        closing(Matrix(own, here.store, found, work, stop)) as matrix,
    ):

        def due() -> Sequence[str]:
            every = config.eval.every
            return here.store.ask(
                lambda session: [
                    row.checkpoint_id
                    for row in evaluations.due_checkpoints(session, here.run_id, every)
                ]
            )

        def over() -> bool:
            return here.store.ask(lambda session: runs.run_state(session, here.run_id)) in RUN_OVER

        def measure(checkpoint_id: str) -> None:
            matrix.one(resolve(checkpoint_id, own, here.store))
            log.info("Checkpoint evaluated", checkpoint_id=checkpoint_id)

        try:
            follow(due, over, measure, stop, look_s=look_s)
        finally:
            ended.set()


def _leave_in_time(stop: threading.Event, ended: threading.Event) -> None:
    """Exit the process after `stop`, whatever its episodes wait for; the lease expires by itself.

    The exit code is not 0, because the run may not be over.
    """
    stop.wait()
    if not ended.wait(GRACE_S):
        log.warning("Exit without waiting for running work")
        os._exit(TERMINATED)
