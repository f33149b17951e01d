"""The evaluator: evaluates checkpoints during training, in a separate process.

consumes  rows of checkpoints: every `eval.every`-th version that is live, the newest first
produces  evaluations, evaluation_episodes; a lease on the checkpoint it measures
(ops/evaluation/checkpoint_lease.py) waits for a version that is due, LOOK_S
ends      with its run, or on SIGTERM: finished episodes are stored, running ones are repeated later

A checkpoint that cannot be evaluated is logged and skipped; training continues.
"""

import threading
from collections.abc import Callable, Sequence

from agentrl.checkpoints.checkpoint_store import WeightsAway
from agentrl.core.config.config import Config
from agentrl.core.errors import AgentRLError, StoreError
from agentrl.core.logging import get_logger
from agentrl.ops.evaluation.command import EvalRequest
from agentrl.workers.attempt_errors import EpisodeStopped

LOOK_S = 2.0

log = get_logger()


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
        except EpisodeStopped:
            return
        except (StoreError, WeightsAway):  # told to stop, or a person must act
            raise
        except AgentRLError as error:
            log.error("Checkpoint not evaluated", checkpoint_id=waiting[0], error=str(error))


def eval_request(config: Config) -> EvalRequest:
    """What `[eval]` asks for."""
    asked = config.eval
    return EvalRequest(
        tasks=asked.tasks,
        splits=asked.splits,
        items=asked.items,
        repeats=asked.repeats,
        temperature=asked.temperature,
    )
