"""Converts a GGUF file with quantised weights to a transformers directory."""

from pathlib import Path
from typing import Any

import torch

from agentrl.core.errors import CheckpointError, ConfigError


def convert_gguf(file: Path, out: Path, dtype: torch.dtype) -> int:
    """Write weights (de-quantised, then cast to `dtype`) and tokenizer of `file` into `out`.

    Returns the number of parameters. Raises ConfigError without the package gguf, CheckpointError
    for a file that transformers does not read.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        )
    except ImportError as error:
        raise ConfigError(
            "reading a GGUF file needs the package gguf", hint="run `pip install gguf`"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        text = str(error).splitlines()[0]
        raise CheckpointError(
            f"{file}: transformers cannot read it: {text}", hint="choose another model"
        ) from error
    model = _dequantised_model(loaded, dtype)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return sum(weight.numel() for weight in model.parameters())


def _dequantised_model(loaded: Any, dtype: torch.dtype) -> Any:
    """Remove the quantisation from the model's configuration.

    transformers refuses to save a de-quantised model.
    """
    described = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
    config = type(loaded.config)(**described)
    config.dtype = dtype
    with torch.device("meta"):
        model = type(loaded)(config)
    weights = {name: weight.to(dtype) for name, weight in loaded.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    return model
