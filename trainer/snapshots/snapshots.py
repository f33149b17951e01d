"""Snapshots, from which a trainer resumes exactly: safetensors and JSON, without pickle."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from agentrl.checkpoints.directories import publish
from agentrl.checkpoints.manifest import Manifest, SaveReport, verify
from agentrl.core.errors import CheckpointError
from agentrl.core.trained_hash import ROOT
from agentrl.trainer.model.files.tensor_file import write_tensors

TENSORS = "state.safetensors"
VALUES = "state.json"


@dataclass(frozen=True, slots=True)
class State:
    """The state of a snapshot: `tensors` by flat name, `values` in JSON."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]


def save(
    directory: Path, state: State, *, checkpoint_id: str, version: int, trained_hash: str = ROOT
) -> Manifest:
    """Write the state to a new directory. Raises CheckpointError."""

    def write(target: Path) -> SaveReport:
        digest = write_tensors(target / TENSORS, state.tensors)
        (target / VALUES).write_text(json.dumps(dict(state.values)))
        return SaveReport({TENSORS: digest})

    return publish(
        directory,
        write,
        checkpoint_id=checkpoint_id,
        version=version,
        parent=None,
        trained_hash=trained_hash,
    )


def load(directory: Path) -> tuple[State, Manifest]:
    """Load and verify a snapshot; return state and manifest. Raises CheckpointError."""
    manifest = verify(directory)
    try:
        values = json.loads((directory / VALUES).read_text())
        return State(load_file(directory / TENSORS), values), manifest
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{directory} is not a snapshot: {error}") from error


def random_state() -> State:
    """Return the state of the random generators of python, numpy and torch on all used devices."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, words, following = random.getstate()
    tensors = {"random/torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    values = {
        "random/python": [version, list(words), following],
        "random/numpy": [str(name), [int(key) for key in keys], position, has_gauss, gauss],
    }
    return State(tensors, values)


def set_random_state(state: State) -> None:
    """Restore the output of `random_state`; other names are ignored."""
    version, words, following = state.values["random/python"]
    random.setstate((version, tuple(words), following))
    name, keys, *rest = state.values["random/numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), *rest))
    torch.set_rng_state(state.tensors["random/torch"])
    if "random/cuda" in state.tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(state.tensors["random/cuda"])
