"""A frozen model of a directory that scores tokens: a whole model, or an adapter on its base."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentrl.checkpoints.manifest import find_base
from agentrl.core.config.sections.training import Lora
from agentrl.trainer.algorithm.advantages import Floats
from agentrl.trainer.algorithm.objective import Objective
from agentrl.trainer.algorithm.presets import Settings
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import Hardware, proceed
from agentrl.trainer.model.files.export import Merge
from agentrl.trainer.model.files.loading import load_model
from agentrl.trainer.model.packing import micro_batches
from agentrl.trainer.model.trainable_model import FullModel


class FrozenModel:
    """Scores with weights in the hardware's dtype. It implements TeacherModel."""

    def __init__(self, path: Path, settings: Settings, hardware: Hardware, merge: Merge) -> None:
        """`merge`: of an adapter and its base. Raises CheckpointError."""
        frozen = replace(hardware, weights_dtype=hardware.dtype)
        plain = replace(settings, kl_weight=0.0, gradient_checkpointing=False, lora=Lora())
        self._model = FullModel(path, plain, frozen, partial(_load_merged, merge=merge)).model
        self._objective = Objective(plain, frozen, nullcontext)
        self._budget = settings.pass_tokens

    def logprobs(self, batch: Batch, before_pass: Callable[[], object] = proceed) -> Floats:
        """See TeacherModel; each token is scored at the temperature it was sampled at."""
        found = np.zeros(batch.tokens.size, np.float32)
        for micro in micro_batches(batch, self._budget):
            before_pass()
            found[micro.sources] = self._objective.logprobs(self._model, micro)
        return found


def _load_merged(path: Path, device: torch.device, dtype: torch.dtype, merge: Merge) -> Any:
    """Load a model, or an adapter merged into its base. Raises CheckpointError."""
    base = find_base(path)
    model = load_model(base or path, device, dtype)
    return merge(model, path) if base else model
