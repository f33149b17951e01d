"""The model directory that a learner trains: weights, configuration, tokenizer, chat template."""

import fnmatch
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from agentrl.core.config.sections.base import Dtype
from agentrl.core.errors import CheckpointError
from agentrl.core.processes.malloc_tuning import release_unused

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template*",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
)


def load_model(path: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    """Load a causal language model without dropout. Raises CheckpointError.

    It refuses missing weights, which transformers would initialise randomly, and architectures that
    change logits after the head, which the learner computes separately.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,  # never a pickle
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        text = str(error).splitlines()[0]
        raise CheckpointError(
            f"{path}: transformers cannot load this model: {text}", hint="set another model.path"
        ) from error
    model, report = loaded
    make_savable(model)
    if report["missing_keys"]:
        raise CheckpointError(f"{path}: the weight {min(report['missing_keys'])} is missing")
    model = model.to(device).eval()
    probe = torch.arange(8, device=device)[None]
    with torch.no_grad():
        hidden = model.base_model(input_ids=probe, use_cache=False).last_hidden_state
        logits = model(input_ids=probe, use_cache=False).logits
        apart = model.get_output_embeddings()(hidden)
    if not torch.allclose(apart, logits, atol=1e-4):
        raise CheckpointError(
            f"{path}: {type(model).__name__} changes its logits after the head (scaling or "
            "soft-capping, for example), which the trainer does not support",
            hint="choose another model",
        )
    release_unused()  # of copies that transformers made to join experts or to cast weights
    return model


def make_savable(model: Any) -> None:
    """Drop sampling defaults that transformers loads with a warning but refuses to save.

    An example is a temperature without `do_sample`. The special tokens stay.
    """
    from transformers import GenerationConfig

    if not model.can_generate():
        return
    given = model.generation_config
    make: Any = GenerationConfig
    try:
        given.validate(strict=True)
    except ValueError:
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        model.generation_config = make(**{name: getattr(given, name) for name in names})


def load_structure(path: Path, _: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    """Build the same model without its weights, on the host. Raises CheckpointError.

    A parameter has the memory of one number, and buffers are not filled: ZeRO 3 allocates only this
    rank's part.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=dtype, attn_implementation="sdpa"
            )
    except (OSError, ValueError, KeyError) as error:
        text = str(error).splitlines()[0]
        raise CheckpointError(
            f"{path}: {text}",
            hint="set model.path to a transformers directory; check it with `agentrl model check`",
        ) from error
    stand_ins = {
        each: nn.Parameter(torch.zeros(1, dtype=each.dtype).expand(each.shape))
        for each in model.parameters()
    }
    for module in model.modules():
        for name, parameter in module._parameters.items():  # noqa: SLF001 - tied ones stay one
            if parameter is not None:
                module._parameters[name] = stand_ins[parameter]  # noqa: SLF001
        for name, buffer in module._buffers.items():  # noqa: SLF001
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device="cpu")  # noqa: SLF001
    return model.eval()


def save_as(model: Any, directory: Path, dtype: Dtype) -> None:
    """Write the model with weights cast to `dtype`, without changing the model."""
    weights = {k: v.to(getattr(torch, dtype)) for k, v in model.state_dict().items()}
    model.save_pretrained(directory, state_dict=weights)
    path = directory / "config.json"  # where transformers wrote the type of the model's own weights
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": dtype}, indent=2) + "\n")


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the files of tokenizer and chat template, byte for byte."""
    for path in sorted(source.iterdir()):
        if path.is_file() and any(fnmatch.fnmatch(path.name, name) for name in TOKENIZER_FILES):
            shutil.copyfile(path, target / path.name)
