"""What bfloat16 costs here: its speed on this CPU, and its error beside float32 on one text."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from agentrl.trainer.model.files.loading import load_model
from agentrl.trainer.model.probe_text import probe_tokens


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
    """Return [T - 1] natural logs of p(token t + 1 | tokens up to t), in float32."""
    model = load_model(path, torch.device("cpu"), dtype)
    config = model.config.get_text_config()
    ids = torch.tensor([probe_tokens(path, config.vocab_size, config.max_position_embeddings)])
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
    return torch.log_softmax(logits, dim=-1).gather(1, ids[0, 1:, None])[:, 0]
