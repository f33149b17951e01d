"""Exports a checkpoint as a directory that transformers can load."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from agentrl.checkpoints import manifest
from agentrl.checkpoints.directories import verify, write_directory
from agentrl.checkpoints.manifest import find_base
from agentrl.core.errors import CheckpointError
from agentrl.trainer.model.files.loading import copy_tokenizer, make_savable

Merge = Callable[[Any], None]  # adds the only adapter of peft's layer to its weight


def export(checkpoint_dir: Path, out: Path, merge: Merge | None = None) -> None:
    """Verify a checkpoint and copy it; `merge` merges an adapter into its base.

    Raises CheckpointError for a corrupt checkpoint, an existing `out`, or a merge without peft.
    """
    verify(checkpoint_dir)
    with write_directory(out) as partial:
        fill(checkpoint_dir, partial, merge)


def fill(checkpoint_dir: Path, out: Path, merge: Merge | None) -> None:
    """Like `export`, for a verified checkpoint and an existing directory."""
    base = find_base(checkpoint_dir)
    if merge and base:
        merge_adapter(checkpoint_dir, base, out, merge)
    else:
        ignored = shutil.ignore_patterns(manifest.FILE)
        shutil.copytree(checkpoint_dir, out, ignore=ignored, dirs_exist_ok=True)


def merge_adapter(adapter: Path, base: Path, out: Path, merge: Merge) -> None:
    """Write the base model with the adapter added into an existing directory.

    Raises what `add_adapter` raises.
    """
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        base, local_files_only=True, use_safetensors=True, dtype="auto"
    )
    make_savable(model)
    add_adapter(model, adapter, merge).save_pretrained(out)
    copy_tokenizer(base, out)
    copy_tokenizer(adapter, out)


def add_adapter(model: Any, adapter: Path, merge: Merge) -> Any:
    """Return the base model with the adapter's weights added to its own, which are replaced.

    Raises CheckpointError without peft, and for an adapter that does not fit the model.
    """
    try:
        from peft import PeftModel
        from peft.tuners.tuners_utils import BaseTunerLayer
    except ImportError as error:
        raise CheckpointError(
            "merging a LoRA adapter needs peft", hint="run `pip install peft`"
        ) from error
    try:
        tuned: Any = PeftModel.from_pretrained(model, adapter)
        for module in tuned.modules():
            if isinstance(module, BaseTunerLayer):
                merge(module)
    except (OSError, ValueError, RuntimeError) as error:
        text = str(error).splitlines()[0]
        raise CheckpointError(
            f"{adapter}: the adapter does not fit its base model: {text}"
        ) from error
    return tuned.unload()


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
