"""Exports a checkpoint as a directory that transformers can load."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.checkpoints import manifest
from agentrl.checkpoints.directories import verify, write_directory
from agentrl.checkpoints.manifest import find_base
from agentrl.trainer.model.files.loading import copy_tokenizer, make_savable

Merge = Callable[[Any, Path], Any]  # returns a model to which an adapter has been added


def export(checkpoint_dir: Path, out: Path, merge: Merge | None = None) -> None:
    """Verify a checkpoint and copy it; `merge` merges an adapter into its base.

    Raises CheckpointError for a corrupt checkpoint or an existing `out`.
    """
    verify(checkpoint_dir)
    with write_directory(out) as partial:
        fill(checkpoint_dir, partial, merge)


def fill(checkpoint_dir: Path, out: Path, merge: Merge | None) -> None:
    """Like `export`, for a verified checkpoint and an existing directory."""
    base = find_base(checkpoint_dir)
    if merge and base:
        write_merged(checkpoint_dir, base, out, merge)
    else:
        ignored = shutil.ignore_patterns(manifest.FILE)
        shutil.copytree(checkpoint_dir, out, ignore=ignored, dirs_exist_ok=True)


def write_merged(adapter: Path, base: Path, out: Path, merge: Merge) -> None:
    """Write the base model with the adapter added into an existing directory.

    Raises CheckpointError for an adapter that does not fit the model.
    """
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        base, local_files_only=True, use_safetensors=True, dtype="auto"
    )
    make_savable(model)
    merge(model, adapter).save_pretrained(out)
    copy_tokenizer(base, out)
    copy_tokenizer(adapter, out)
