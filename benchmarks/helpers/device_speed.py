"""What a device does at best: products, copies, and what follows from them; and how to time it."""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from agentrl.ops.configuration.model_spec import ModelSpec
from agentrl.trainer.batch import Batch


def matmul_speed(device: str, repeats: int) -> float:
    """Operations a second of a large product in bfloat16."""
    width = 8192 if device != "cpu" else 1024
    one = torch.randn(width, width, device=device, dtype=torch.bfloat16)
    return 2 * width**3 / median_s(device, repeats, lambda: one @ one)


def copy_speed(device: str, repeats: int, source: str) -> float:
    """Bytes a second, read and written, of a copy to the device."""
    count = 2**30 if device != "cpu" else 2**26
    pinned = source == "cpu" != device
    content = torch.empty(count, dtype=torch.uint8, device=source, pin_memory=pinned)
    target = torch.empty(count, dtype=torch.uint8, device=device)
    passes = 2 if source == device else 1
    return passes * count / median_s(device, repeats, lambda: target.copy_(content))


def decoding_ceiling(
    spec: ModelSpec, concurrent: int, bytes_per_s: float, operations_per_s: float
) -> float:
    """Tokens a second of so many rows that sample at once from bfloat16 weights.

    Each pass reads the matrices once and multiplies with them; nothing else takes time.
    """
    matrices = spec.linear + spec.vocabulary * spec.hidden
    return min(concurrent * bytes_per_s, operations_per_s) / (2 * matrices)


def operations(spec: ModelSpec, batch: Batch) -> float:
    """Operations of forward and backward pass: six a weight and token, and causal attention."""
    linear = spec.linear * batch.tokens.size + spec.vocabulary * spec.hidden * batch.loss_mask.sum()
    attention = spec.layers * spec.queries * float((batch.lengths.astype(np.float64) ** 2).sum())
    return 6.0 * float(linear) + 6.0 * attention


def median_s(device: str, repeats: int, work: Callable[[], object]) -> float:
    """Seconds of a repetition, after one that warms up."""
    seconds(device, work)
    return statistics.median(seconds(device, work) for _ in range(repeats))


def seconds(device: str, work: Callable[[], object]) -> float:
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: str) -> None:
    """Wait for what the card still computes."""
    if device != "cpu":
        torch.cuda.synchronize()
