"""What bfloat16 costs here: its speed on this CPU, and its error beside float32 on one text."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from agentrl.trainer.model.files.loading import load_model
from agentrl.trainer.model.trainable_model import make_probe


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


def bfloat16_noise(path: Path) -> Noise:
    """Measure the error with the trainer's forward pass on the CPU. Raises CheckpointError."""
    exact, rounded = (_logprobs(path, dtype) for dtype in (torch.float32, torch.bfloat16))
    off = (exact - rounded).abs()
    return Noise(len(off), off.median().item(), off.mean().item(), off.max().item())


def _logprobs(path: Path, dtype: torch.dtype) -> Tensor:
    return torch.tensor(make_probe(load_model(path, torch.device("cpu"), dtype), dtype).logprobs)
