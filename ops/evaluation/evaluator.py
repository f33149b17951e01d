"""The evaluator: measures checkpoints while the run trains, in a process of its own.

consumes  rows of checkpoints: every `eval.every`-th version that is live, the newest first
produces  evaluations, evaluation_episodes; a lease on the checkpoint it measures
(ops/evaluation/checkpoint_lease.py) waits for a version that is due, LOOK_S
ends      with its run, or on SIGTERM: what ended is kept, what runs is played again another time

A checkpoint that cannot be measured is told of and passed over: training goes on.
"""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

from agentrl.checkpoints.checkpoint_store import WeightsAway
from agentrl.core.config import Config
from agentrl.core.errors import AgentRLError, ConfigError, StoreError
from agentrl.core.logging import get_logger
from agentrl.core.process import TOLD, weigh_session
from agentrl.core.types import RUN_OVER
from agentrl.db.transitions import evaluations, runs
from agentrl.envs.sources import sources
from agentrl.ops.evaluation.command import Matrix, Wish, only, planned
from agentrl.ops.evaluation.evaluate import work_of
from agentrl.ops.evaluation.target import resolve
from agentrl.ops.runs.begin import opened
from agentrl.workers.episode import Stopped

LOOK_S = 2.0
GRACE_S = 3.5  # between SIGTERM and leaving whatever an environment still waits for

log = get_logger()


def evaluate_run(config: Config, stop: threading.Event, look_s: float = LOOK_S) -> None:
    """Until the run is over or `stop`. Raises ConfigError, ItemError, StoreError."""
    if not config.eval.every:
        raise ConfigError("eval.every is 0: nothing is due", hint="set it to a number of updates")
    ended = threading.Event()
    threading.Thread(target=_leave_in_time, args=(stop, ended), daemon=True).start()
    own = config.as_evaluated()
    plans = planned(own, wish(config))
    found = sources(only(own, plans))
    work = {plan: work_of(plan, found[plan.task]) for plan in plans}
    with (
        opened(own, stop) as run,
        closing(Matrix(own, run.store, found, work, stop)) as matrix,
    ):

        def due() -> Sequence[str]:
            every = config.eval.every
            return run.store.ask(
                lambda session: [
                    row.checkpoint_id for row in evaluations.due(session, run.run_id, every)
                ]
            )

        def over() -> bool:
            return run.store.ask(lambda session: runs.run_state(session, run.run_id)) in RUN_OVER

        def measure(checkpoint_id: str) -> None:
            matrix.one(resolve(checkpoint_id, own, run.store))
            log.info("Measured", checkpoint_id=checkpoint_id)

        try:
            follow(due, over, measure, stop, look_s=look_s)
        finally:
            ended.set()


def follow(
    due: Callable[[], Sequence[str]],
    over: Callable[[], bool],
    measure: Callable[[str], None],
    stop: threading.Event,
    *,
    look_s: float = LOOK_S,
) -> None:
    """Measure what is due, the first of the list first, each once, until `over` or `stop`."""
    seen: set[str] = set()
    while not (stop.is_set() or over()):
        waiting = [name for name in due() if name not in seen]
        if not waiting:
            stop.wait(look_s)
            continue
        seen.add(waiting[0])
        try:
            measure(waiting[0])
        except Stopped:
            return
        except (StoreError, WeightsAway):  # told to stop, or a person must act
            raise
        except AgentRLError as error:
            log.error("A checkpoint is not measured", checkpoint_id=waiting[0], error=str(error))


def wish(config: Config) -> Wish:
    """What `[eval]` asks for."""
    asked = config.eval
    return Wish(
        tasks=asked.tasks,
        splits=asked.splits,
        items=asked.items,
        repeats=asked.repeats,
        temperature=asked.temperature,
    )


def stand_back(nice: int) -> None:
    """Let everybody else compute first, also where Linux weighs whole sessions (autogroup)."""
    os.nice(nice)
    weigh_session(nice)


def _leave_in_time(stop: threading.Event, ended: threading.Event) -> None:
    """End the process after `stop`, whatever its episodes wait for; the lease ends by itself.

    The code does not say that the run is over: it may not be.
    """
    stop.wait()
    if not ended.wait(GRACE_S):
        log.warning("end not waited for")
        os._exit(TOLD)
