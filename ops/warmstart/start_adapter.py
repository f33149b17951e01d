"""Keeps the adapter of a warm start beside its merged model: OUT-adapter, a few megabytes, from
which OUT can be made again.

    starting model + OUT-adapter ─▶ OUT, the same weights byte for byte on every machine

OUT is as large as the model but need not be kept: the same command makes it again in seconds.
"""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from agentrl.checkpoints import directories, manifest
from agentrl.checkpoints.manifest import SaveReport
from agentrl.core.config_loading import describe_changes
from agentrl.core.errors import CheckpointError, ConfigError
from agentrl.ops.warmstart.student_policy import Skill, StudentPolicy
from agentrl.serving.local.adapter_sum import merge_adapter
from agentrl.trainer.model.files.export import write_merged

FILE = "warmstart.json"
CARD = "README.md"
ADAPTER_FOLDER = "adapter"  # in the unfinished OUT


class StartRecord(msgspec.Struct, frozen=True):
    """How a warm start ended. `fingerprint`: of its options. `weights`: SHA-256 by file of OUT.

    `options`: see `describe_options`; empty in a record of an older version. The other fields are
    those of its report.
    """

    fingerprint: str
    parameters: int
    demonstrations: int
    steps: int
    seconds: float
    loss: float
    skills: Mapping[str, Skill]
    weights: Mapping[str, str] = {}
    options: Mapping[str, Any] = {}


class StartAdapter:
    """The folder OUT-adapter of a warm start: writes it with OUT, and makes OUT from it again.

    `out`: the whole model. `base`: the model that the adapter was trained on.
    """

    def __init__(self, out: Path, base: Path) -> None:
        self.folder = out.with_name(f"{out.name}-adapter")
        self._out = out
        self._base = base

    def find(self, fingerprint: str) -> StartRecord | None:
        """Return the record of a finished warm start, or None.

        Raises ConfigError if it had other options, CheckpointError.
        """
        record = self._read()
        if record is not None and record.fingerprint != fingerprint:
            raise ConfigError(
                f"{self.folder} contains a warm start with other options",
                hint="run its command again, or delete the folder",
            )
        return record

    def require_same_options(self, options: Mapping[str, Any]) -> None:
        """Raise ConfigError unless `out` was made with these options, as far as is recorded."""
        record = self._read()
        hint = f"delete {self._out} and {self.folder}; the same command clones it again"
        if record is None:
            raise ConfigError(f"{self.folder} does not say how {self._out} was cloned", hint=hint)
        before, after = (msgspec.json.encode(each).decode() for each in (record.options, options))
        if record.options and (changes := describe_changes(before, after)):
            raise ConfigError(
                f"{self._out} was cloned with other options: {', '.join(changes)}", hint=hint
            )

    def _read(self) -> StartRecord | None:
        """Return the record if the folder exists. Raises CheckpointError."""
        if not self.folder.exists():
            return None
        directories.verify(self.folder)
        return msgspec.json.decode((self.folder / FILE).read_bytes(), type=StartRecord)

    def publish(self, student: StudentPolicy, card: str, record: StartRecord) -> None:
        """Write the adapter and its record, then `out`, each atomically."""

        def merge(target: Path) -> SaveReport:
            part = target / ADAPTER_FOLDER
            student.save(part)
            weights = self._merge(part, card, target)
            shutil.rmtree(part)
            self._publish_adapter(student, card, msgspec.structs.replace(record, weights=weights))
            return SaveReport(weights)

        directories.publish(self._out, merge, checkpoint_id=self._out.name, version=0, parent=None)

    def restore(self, record: StartRecord) -> None:
        """Write `out` from the adapter. Raises CheckpointError unless its weights are the same."""

        def merge(target: Path) -> SaveReport:
            card = (self.folder / CARD).read_text("utf-8")
            weights = self._merge(self.folder, card, target)
            if weights != record.weights:
                raise CheckpointError(
                    f"{self._base} and {self.folder} no longer give the same weights",
                    hint="import the starting model again",
                )
            return SaveReport(weights)

        directories.publish(self._out, merge, checkpoint_id=self._out.name, version=0, parent=None)

    def _merge(self, adapter: Path, card: str, target: Path) -> dict[str, str]:
        """Fill `target`; return the SHA-256 of each file of weights."""
        write_merged(adapter, self._base, target, partial(merge_adapter, merge=add_in_float64))
        (target / CARD).write_text(card, "utf-8")
        return manifest.weight_digests(target)

    def _publish_adapter(self, student: StudentPolicy, card: str, record: StartRecord) -> None:
        def write(directory: Path) -> None:
            student.save(directory)
            (directory / CARD).write_text(card, "utf-8")
            (directory / FILE).write_bytes(msgspec.json.encode(record))

        name = self.folder.name
        directories.publish(self.folder, write, checkpoint_id=name, version=0, parent=None)


def add_in_float64(layer: Any) -> None:
    """Add scaling · B·A of the only adapter to the weight of a linear module.

    It is summed in float64 and rounded once, so that every machine writes the same weights.
    """
    (name,) = layer.active_adapters
    product = layer.lora_B[name].weight.double() @ layer.lora_A[name].weight.double()
    weight = layer.get_base_layer().weight
    added = product.T if layer.fan_in_fan_out else product
    with torch.no_grad():
        weight.copy_(weight.double() + layer.scaling[name] * added)
