"""Random models by size, and one small fixed batch to train them on."""

from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config

from agentrl.core.config.sections.training import Trainer
from agentrl.core.trajectory import PolicyRef, StepRecord, Trajectory
from agentrl.core.types import Status
from agentrl.ops.configuration.published_models import PUBLISHED
from agentrl.trainer.algorithm.presets import Settings, resolve_settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch

VOCABULARY = 768  # of the tokens drawn
PROMPT = 20  # tokens before the first turn
POLICY = PolicyRef(checkpoint_id="c", version=0, track="current", server_id="s")
SHAPES = {  # hidden, layers, heads, feed-forward, vocabulary
    "tiny": (64, 2, 4, 160, 1024),
    "quickstart": (128, 4, 4, 320, 768),
    "1M": (128, 4, 4, 320, 1024),
    "5M": (256, 6, 4, 704, 2048),
    "25M": (512, 8, 8, 1408, 4096),
    "100M": (768, 12, 12, 2304, 16384),
    "300M": (1024, 20, 16, 3072, 32768),
    "1B": (2048, 18, 16, 6144, 65536),
}


def make_model(
    size: str, path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> int:
    """Random weights of one of `SHAPES` or of a published architecture; returns how many."""
    torch.manual_seed(0)
    config = _described(size)
    config.dtype = dtype
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    model.save_pretrained(path)
    return sum(parameter.numel() for parameter in model.parameters())


def _described(size: str) -> Any:
    if size in PUBLISHED:
        return AutoConfig.for_model(**PUBLISHED[size])
    hidden, layers, heads, forward, vocabulary = SHAPES[size]
    return Qwen3Config(
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
    return assemble_batch(groups, resolve_settings(Trainer()))


def ragged_batch(chosen: Settings, count: int = 8, shared: int = 0) -> Batch:
    """`count` groups of 8, two tasks: 64 to 512 tokens and 2 to 8 turns each, drawn once.

    `shared`: tokens more in the prompt, the same in all of a group.
    """
    random = np.random.default_rng(0)
    groups = [
        TrainableGroup(f"g{number}", task, _ragged_group(random, task, shared))
        for number, task in zip(range(count), cycle(("db", "household")), strict=False)
    ]
    return assemble_batch(groups, chosen)


def _ragged_group(random: np.random.Generator, task: str, shared: int) -> tuple[Trajectory, ...]:
    prompt = PROMPT + shared if shared else 0  # without `shared` every prompt is another
    first = random.integers(0, VOCABULARY, prompt).astype("<i4").tobytes()
    members = []
    for _ in range(8):
        length, turns = shared + int(random.integers(64, 513)), int(random.integers(2, 9))
        member = make_trajectory(random, task, length, turns, PROMPT + shared)
        token_ids = first + member.token_ids[len(first) :]
        members.append(msgspec.structs.replace(member, token_ids=token_ids))
    return tuple(members)


def make_trajectory(
    random: np.random.Generator, task: str, length: int, turns: int, prompt: int = PROMPT
) -> Trajectory:
    """A prompt, then turns of which half is sampled."""
    mask = np.zeros(length, np.uint8)
    steps = []
    width = (length - prompt) // turns
    for start in range(prompt, length - width + 1, width):
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
