"""Peak memory of an update by the length of its one trajectory.

    python benchmarks/context_length.py [--lengths 4096 8192 16384 32768] [--vocabulary 32768]
        [--checkpointing] [--device cpu]

Each length in a process of its own: a random Qwen3 of 2 layers, hidden 32; with a vocabulary of
32,768 all logits at once would be 128 KiB a token. Half of the tokens are loss tokens.
`per_token`: what the peak (the kernel's VmHWM) is above that of the shortest, a token.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", nargs="+", type=int, default=[4096, 8192, 16384, 32768])
    parser.add_argument("--vocabulary", type=int, default=2**15)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(peak(chosen))
        return
    command = [sys.executable, __file__, "--vocabulary", str(chosen.vocabulary)]
    command += ["--device", chosen.device]
    command += ["--checkpointing"] * chosen.checkpointing
    rows: list[dict[str, float]] = []
    for length in sorted(chosen.lengths):
        measured = subprocess.run(
            [*command, "--one", str(length)], check=True, capture_output=True, text=True
        )
        row: dict[str, float] = {"tokens": length, "peak": int(measured.stdout.split()[-1])}
        if rows:
            more = row["peak"] - rows[0]["peak"]
            row["per_token"] = round(more / (length - rows[0]["tokens"]))
        rows.append(row)
        print(json.dumps(row), flush=True)


def peak(chosen: argparse.Namespace) -> int:
    """Bytes of this process, or on a GPU those that torch reserved."""
    import torch

    from agentrl.core.config.sections.training import Trainer
    from agentrl.trainer.algorithm.presets import resolve_settings
    from agentrl.trainer.engines.learner import Hardware
    from agentrl.trainer.engines.torch_learner import TorchLearner

    settings = resolve_settings(Trainer(gradient_checkpointing=chosen.checkpointing))
    with tempfile.TemporaryDirectory() as folder:
        _model(chosen.vocabulary).save_pretrained(folder)
        learner = TorchLearner(Path(folder), settings, Hardware(chosen.device))
    learner.update(_batch(chosen.one, chosen.vocabulary))
    if chosen.device != "cpu":
        return torch.cuda.max_memory_reserved()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _model(vocabulary: int) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
        max_position_embeddings=2**16,
    )
    return Qwen3ForCausalLM(shape)  # type: ignore[no-untyped-call]


def _batch(length: int, vocabulary: int) -> Any:
    from agentrl.trainer.batch import Batch

    drawn = np.random.default_rng(0)
    mask = np.arange(length) % 60 >= 30
    return Batch(
        tokens=drawn.integers(0, vocabulary, length),
        loss_mask=mask,
        behaviour=np.full(length, -10.0, np.float32),
        temperature=np.ones(length, np.float32),
        advantages=drawn.standard_normal(length).astype(np.float32),
        fresh=mask,
        shares=(mask / mask.sum()).astype(np.float32),
        lengths=np.array([length], np.int64),
        task_ids=np.zeros(1, np.int64),
        tasks=("task",),
        rewards=np.zeros(1, np.float32),
        successes=np.zeros(1, np.bool_),
        unnormalised=frozenset(),
    )


if __name__ == "__main__":
    main()
