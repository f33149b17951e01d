"""What bfloat16 costs here: its speed on this CPU, and its error beside float32 on one text."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from agentrl.trainer.model.files.loading import load_model
from agentrl.trainer.model.trainable_model import make_probe

REPEATS = 3
SLOW = 0.8  # below this speed beside float32, float32 is the better choice


@dataclass(frozen=True, slots=True)
class Noise:
    """|Δ log p| between bfloat16 and float32, nats, over `tokens` tokens of natural text."""

    tokens: int
    median: float
    mean: float
    largest: float


def is_bfloat16_emulated(device: str) -> bool:
    """Whether this CPU lacks the instructions (AVX-512, AMX, or Arm's) for products in bfloat16.

    torch then computes them one by one, more than ten times slower than in float32.
    """
    if device != "cpu":
        return False
    has_products = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return not (has_products and torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001


def is_bfloat16_slow(device: str) -> bool:
    """Whether this CPU computes clearly slower in bfloat16 than in float32."""
    return is_bfloat16_emulated(device) or (device == "cpu" and bfloat16_speed() < SLOW)


@cache
def bfloat16_speed() -> float:
    """Return how many times as fast as in float32 this CPU multiplies matrices in bfloat16.

    It is below 1 also on some CPUs that have instructions for bfloat16.
    """
    exact, rounded = (min(_times(dtype)) for dtype in (torch.float32, torch.bfloat16))
    return exact / rounded


def _times(dtype: torch.dtype) -> Iterator[float]:
    """Yield the seconds of a training's products in a small language model."""
    inputs, weights = torch.ones(2048, 576, dtype=dtype), torch.ones(1536, 576, dtype=dtype)
    linear(inputs, weights)  # the first product also chooses a kernel
    for _ in range(REPEATS):
        began = time.perf_counter()
        linear(inputs, weights)
        yield time.perf_counter() - began


def bfloat16_noise(path: Path) -> Noise:
    """Measure the error with the trainer's forward pass on the CPU. Raises CheckpointError."""
    exact, rounded = (_logprobs(path, dtype) for dtype in (torch.float32, torch.bfloat16))
    off = (exact - rounded).abs()
    return Noise(len(off), off.median().item(), off.mean().item(), off.max().item())


def _logprobs(path: Path, dtype: torch.dtype) -> Tensor:
    return torch.tensor(make_probe(load_model(path, torch.device("cpu"), dtype), dtype).logprobs)
