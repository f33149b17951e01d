"""Random models by size, and one small fixed batch to train them on."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config
from update_speed import make_trajectory

from core.config import Trainer
from trainer.batch import Batch, TrainableGroup, assemble
from trainer.presets import settings

SHAPES = {  # hidden, layers, heads, feed-forward, vocabulary
    "1M": (128, 4, 4, 320, 1024),
    "5M": (256, 6, 4, 704, 2048),
    "25M": (512, 8, 8, 1408, 4096),
    "100M": (768, 12, 12, 2304, 16384),
    "300M": (1024, 20, 16, 3072, 32768),
    "1B": (2048, 18, 16, 6144, 65536),
}


def make_model(size: str, path: Path) -> int:
    """A random Qwen3; returns how many parameters."""
    hidden, layers, heads, forward, vocabulary = SHAPES[size]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=hidden // heads,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
    )
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(path)
    return sum(parameter.numel() for parameter in model.parameters())


def small_batch() -> Batch:
    """4 groups of 4: half of about 70 tokens and 2 turns, half of about 170 and 8."""
    random = np.random.default_rng(0)
    shapes = [("db", 70, 2)] * 2 + [("household", 170, 8)] * 2
    groups = [
        TrainableGroup(
            f"g{number}",
            task,
            tuple(make_trajectory(random, task, length, turns) for _ in range(4)),
        )
        for number, (task, length, turns) in enumerate(shapes)
    ]
    return assemble(groups, settings(Trainer()))
