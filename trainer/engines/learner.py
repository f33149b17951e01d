"""The interface between the training loop and an engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentrl.checkpoints.manifest import Probe
from agentrl.core.config import Model, Trainer
from agentrl.trainer.algorithm.presets import CHUNK_LOGITS, chunk_logits
from agentrl.trainer.batch import Batch
from agentrl.trainer.snapshots import State


@dataclass(frozen=True, slots=True)
class Metrics:
    """What one update did. `values`: finite numbers by name, those of a task as `task/name`.

    `skipped`: why the optimizer did not step and the weights did not move; empty where it did.
    """

    values: Mapping[str, float]
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Where to compute. `dtype`: of the forward pass and of saved weights; masters are fp32.

    `chunk_logits`: logits held at once, which bounds memory whatever the vocabulary.
    """

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    chunk_logits: int = CHUNK_LOGITS["cpu"]

    @classmethod
    def configured(cls, model: Model, trainer: Trainer, device: str = "") -> "Hardware":
        """What a run's configuration asks for. `device`: `model.device` where empty."""
        device = device or model.device
        return cls(device, model.dtype, trainer.threads, chunk_logits(trainer, device))


class Learner(Protocol):
    """Owns the weights and the optimizer; used by one thread."""

    def update(self, batch: Batch) -> Metrics:
        """One optimizer step over the whole batch, or none with the reason."""

    def save(self, directory: Path) -> None:
        """Write a checkpoint into a directory, for transformers or, an adapter, for peft."""

    def probe(self) -> Probe:
        """What the weights say, in the precision in which `save` writes them, of a fixed text."""

    def state(self) -> State:
        """All that continues bit by bit: weights, optimizer, random generators, counts."""

    def load_state(self, state: State) -> None:
        """Continue from a state. Raises CheckpointError where it does not fit the model."""
