"""A decoder so small that its parameters are counted by hand."""

import json
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 50,
    "tie_word_embeddings": True,
}
# A layer: q 8·8, k 4·8, v 4·8, o 8·8, gate, up, down 3·20·8 = 672; norms 2·8 + 2·4 = 24.
PARAMETERS = 2 * (672 + 24) + 50 * 8 + 8


def small_model(folder: Path) -> Path:
    """Write a model's directory with only config.json."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(SMALL))
    return folder / "model"
