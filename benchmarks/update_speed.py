"""Tokens a second of one update against a bare forward, backward and AdamW over the same tokens.

python benchmarks/update_speed.py --json
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from broker.messages import PolicyRef, StepRecord, Trajectory
from core.config import Trainer
from core.types import Status
from trainer.batch import Batch, TrainableGroup, assemble, micro_batches
from trainer.learner import Hardware
from trainer.learner_torch import TorchLearner
from trainer.presets import Settings, settings

VOCABULARY = 768
POLICY = PolicyRef(checkpoint_id="c", version=0, track="current", server_id="s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--micro-batch-tokens", type=int, default=4096)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args()
    chosen = settings(Trainer(micro_batch_tokens=options.micro_batch_tokens))
    with tempfile.TemporaryDirectory() as directory:
        model = tiny_model()
        model.save_pretrained(directory)
        result = compare(Path(directory), model, chosen, options.repeats)
    print(json.dumps(result) if options.json else table(result))


def compare(path: Path, model: Any, chosen: Settings, repeats: int) -> dict[str, float]:
    """Seconds of each, in turn so that a busy machine slows both; medians of the repeats."""
    batch = make_batch(chosen)
    learner = TorchLearner(path, chosen, Hardware())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    pairs = []
    for _ in range(repeats + 1):
        ours = seconds(lambda: learner.update(batch))
        bare = seconds(lambda: bare_update(model, optimizer, batch, chosen.micro_batch_tokens))
        pairs.append((ours, bare))
    ours, bare = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
    tokens = batch.tokens.size
    return {
        "tokens": tokens,
        "loss_tokens": int(batch.loss_mask.sum()),
        "update_tokens_per_s": round(tokens / ours),
        "bare_tokens_per_s": round(tokens / bare),
        "ratio": round(statistics.median(bare / ours for ours, bare in pairs[1:]), 3),
    }


def bare_update(model: Any, optimizer: torch.optim.Optimizer, batch: Batch, budget: int) -> None:
    """Cross-entropy of every token, nothing else: what any trainer must at least compute."""
    for micro in micro_batches(batch, budget):
        tokens = torch.from_numpy(micro.tokens)
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
        targets = tokens[:, 1:].flatten()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def make_batch(chosen: Settings) -> Batch:
    """16 groups of 8: half of about 70 tokens and 2 turns, half of about 170 and 8."""
    random = np.random.default_rng(0)
    shapes = [("db", 70, 2)] * 8 + [("household", 170, 8)] * 8
    groups = [
        TrainableGroup(
            f"g{number}",
            task,
            tuple(
                make_trajectory(random, task, length + int(random.integers(-20, 20)), turns)
                for _ in range(8)
            ),
        )
        for number, (task, length, turns) in enumerate(shapes)
    ]
    return assemble(groups, chosen)


def make_trajectory(random: np.random.Generator, task: str, length: int, turns: int) -> Trajectory:
    """A prompt of 20 tokens, then turns of which half is sampled."""
    mask = np.zeros(length, np.uint8)
    steps = []
    width = (length - 20) // turns
    for start in range(20, length - width + 1, width):
        end = start + width // 2
        mask[start:end] = 1
        steps.append(
            StepRecord(
                policy_index=0,
                start=start,
                end=end,
                prompt_tokens=start,
                temperature=1.0,
                requested_at=0.0,
                policy_s=0.0,
                env_s=0.0,
                finish_reason="stop",
                call="",
                answer="",
            )
        )
    return Trajectory(
        run_id="run",
        group_id="group",
        episode_id="episode",
        member=0,
        attempt=1,
        fence=1,
        task=task,
        item_id="item",
        status=Status.COMPLETED,
        reward=float(random.integers(0, 2)),
        score=0.0,
        token_ids=random.integers(0, VOCABULARY, length).astype("<i4").tobytes(),
        loss_mask=mask.tobytes(),
        logprobs=(mask * -np.log(VOCABULARY)).astype("<f4").tobytes(),
        policy_index=np.zeros(length, np.uint8).tobytes(),
        policies=(POLICY,),
        steps=tuple(steps),
        started_at=0.0,
        finished_at=0.0,
    )


def tiny_model() -> Any:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
    )
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def table(result: dict[str, float]) -> str:
    return "\n".join(f"{name:>20}  {value:,}" for name, value in result.items())


if __name__ == "__main__":
    main()
