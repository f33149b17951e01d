"""Converts a GGUF file with quantised weights to a transformers directory."""

import re
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

from agentrl.core.errors import CheckpointError, ConfigError

SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")

# Values of tokenizer.ggml.pre for which llama.cpp splits text by GPT-2's rule, and those for which
# it first splits off each digit. transformers applies GPT-2's rule to all values it does not know.
AS_GPT2 = {
    *("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat"),
    *("jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum", "modern-bert"),
}
BY_DIGIT = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}


def convert_gguf(file: Path, out: Path, dtype: torch.dtype) -> int:
    """Write weights (de-quantised, then cast to `dtype`) and tokenizer of `file` into `out`.

    Returns the number of parameters. Raises ConfigError without the package gguf, CheckpointError
    for a file that transformers does not read, or reads without weights, the scaling of its rotary
    positions or the rule by which its tokenizer splits text.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        from gguf import GGUFReader

        tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        found: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, output_loading_info=True
        )
        reader = GGUFReader(file)
        scaled, split = _is_rope_scaled(reader), reader.fields.get("tokenizer.ggml.pre")
    except ImportError as error:
        raise ConfigError(
            "reading a GGUF file needs the package gguf", hint="run `pip install gguf`"
        ) from error
    except Exception as error:  # transformers, gguf and tokenizers raise nothing narrower
        text = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(
            f"{file}: transformers cannot read it: {text}", hint="choose another model"
        ) from error
    loaded, report = found
    if report["missing_keys"]:
        hint = "join the split parts with llama-gguf-split" if SPLIT.search(file.name) else ""
        missing = min(report["missing_keys"])
        raise CheckpointError(f"{file}: the weight {missing} is missing", hint=hint)
    if scaled and _rope_types(loaded.config) <= {"default"}:
        raise CheckpointError(
            f"{file}: transformers drops the scaling of its rotary positions",
            hint="import the original transformers model",
        )
    if split is not None:
        _split_text(tokenizer.backend_tokenizer, split.contents(), file)
    model = _dequantised_model(loaded, dtype)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return sum(weight.numel() for weight in model.parameters())


def _is_rope_scaled(reader: Any) -> bool:
    """Return whether llama.cpp scales the rotary positions, by a rule or by frequency."""
    kinds = (field for name, field in reader.fields.items() if name.endswith(".rope.scaling.type"))
    return any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors) or any(
        kind.contents() != "none" for kind in kinds
    )


def _split_text(tokenizer: Any, rule: str, file: Path) -> None:
    """Split text by the rule of llama.cpp if transformers does not. Raises CheckpointError."""
    if not isinstance(tokenizer.pre_tokenizer, ByteLevel) or rule in AS_GPT2:
        return
    if rule not in BY_DIGIT:
        raise CheckpointError(
            f"{file}: its tokenizer splits text as {rule}, which transformers does not know",
            hint="import the original transformers model",
        )
    tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), tokenizer.pre_tokenizer])


def _rope_types(config: Any) -> set[str]:
    """Return the kinds of rotary positions, of which a model may have one per type of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    each = [rope] if "rope_type" in rope else [v for v in rope.values() if isinstance(v, dict)]
    return {one.get("rope_type", "default") for one in each}


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
