"""Measures each task's part of an update's gradient with one backward pass per task.

Batch ─▶ the tokens of one task, their shares of the loss kept ─▶ norm of that part's gradient
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from agentrl.trainer.algorithm.presets import Settings
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.snapshots.snapshots import State


class Gauge:
    """Measures gradients at a learner's state without changing the learner."""

    def __init__(self, model_path: Path, settings: Settings, hardware: Hardware) -> None:
        """Takes the arguments of the learner."""
        self._learner = TorchLearner(model_path, settings, hardware)

    def norms(self, batch: Batch, state: State) -> dict[str, float]:
        """Return the norm, before clipping, of each task's part of the gradient at `state`.

        The parts add up to the batch's gradient; their norms only do if all point in the same
        direction.
        """
        found = {}
        for index, task in enumerate(batch.tasks):
            self._learner.load_state(state)
            metrics = self._learner.update(part(batch, index))
            found[task] = metrics.values.get("grad_norm", 0.0)
        return found


def part(batch: Batch, task: int) -> Batch:
    """Return one task's part of the batch, with unchanged shares of the loss."""
    own = batch.token_tasks == task
    return replace(
        batch,
        loss_mask=batch.loss_mask & own,
        shares=np.where(own, batch.shares, np.float32(0)),
    )
