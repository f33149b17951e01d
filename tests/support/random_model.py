"""Random models that save in milliseconds."""

from pathlib import Path
from typing import Any


def save_random_qwen3(path: Path, seed: int, **shape: Any) -> None:
    """Save a Qwen3 of 40 k parameters, tied; `shape`: its other settings."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    given: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(Qwen3Config(**given | shape))  # type: ignore[no-untyped-call]
    model.save_pretrained(path)
