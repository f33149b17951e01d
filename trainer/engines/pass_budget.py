"""How many tokens a pass may have: the configured number, fewer where measured memory is short.

    each pass ─▶ its tokens, the bytes it needed, and the gradients that it left
    next update ─▶ free bytes · share - gradients ─▶ most tokens of its passes

The gradients are counted apart, because the first pass of an update computes beside none. Packed
attention on a GPU needs memory linear in tokens, so one rate serves trajectories of all lengths.
The rate still drifts with the mix of lengths; only the last updates count.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from agentrl.core.errors import ConfigError
from agentrl.core.logging import get_logger
from agentrl.trainer.model.packing import MicroBatch

UPDATES = 4  # that are remembered
LEAST_SLOPE = 0.5  # of the bytes per token of the pass that needed most: the rest may be fixed

log = get_logger()


class DeviceMemory(Protocol):
    """Memory counters of a device, in bytes. They count tensors of this process."""

    def held(self) -> int:
        """Return what tensors hold now."""

    def peak(self) -> int:
        """Return the most that they held since `reset_peak`."""

    def reset_peak(self) -> None: ...

    def free(self) -> int:
        """Return what more they could hold, beside what other processes hold now."""


class CudaMemory(DeviceMemory):
    """Counters of torch's allocator and of the driver. They wait for no kernel."""

    def __init__(self, device: str) -> None:
        self._device = device

    def held(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def free(self) -> int:
        unused = torch.cuda.memory_reserved(self._device) - self.held()  # torch keeps it for reuse
        return torch.cuda.mem_get_info(self._device)[0] + unused


def find_memory(device: str) -> DeviceMemory | None:
    """Return the device's counters; None for a CPU.

    A process's main memory has a peak that only grows, and includes what malloc keeps.
    """
    return CudaMemory(device) if device.startswith("cuda") else None


@dataclass(frozen=True, slots=True)
class MeasuredPass:
    """`size`: bytes that it needed beside the gradients of the passes before."""

    tokens: int
    size: int


@dataclass(slots=True)
class MeasuredUpdate:
    """`most`: tokens of a pass that may be tried. `gradients`: bytes."""

    most: int
    gradients: int = 0
    passes: list[MeasuredPass] = field(default_factory=list)


class PassBudget:
    """The most tokens of a pass. Without counters it changes only where memory runs out.

    `tokens`: of the update under way. `peak`: the most bytes that its passes held; 0: not measured.
    """

    def __init__(self, most: int, share: float, memory: DeviceMemory | None) -> None:
        """`most`: the configured tokens. `share`: of the free memory that a pass may take."""
        self.tokens, self.peak = most, 0
        self._most, self._share, self._memory = most, share, memory
        self._held = 0  # before the update under way
        self._forward = 0  # the peak of the forward pass under way
        self._update = MeasuredUpdate(most)
        self._updates: deque[MeasuredUpdate] = deque(maxlen=UPDATES)

    def plan(self) -> int:
        """Begin an update; return the most tokens of its passes."""
        if self._memory is None:
            return self.tokens
        if self._update.passes:
            self._updates.append(self._update)
        self._update, self.peak = MeasuredUpdate(self._most), 0
        self._held = self._memory.held()
        self.tokens = self._most
        if self._updates:
            gradients = max(update.gradients for update in self._updates)
            room = self._share * self._memory.free() - gradients
            fit = tokens_within(room, [each for one in self._updates for each in one.passes])
            self.tokens = max(1, min(fit, *(update.most for update in self._updates)))
        return self.tokens

    @contextmanager
    def measure(self, micro: MicroBatch) -> Iterator[None]:
        """Context manager for the forward and backward pass of a micro-batch."""
        if self._memory is None:
            yield
            return
        before = self._forward = self._memory.held()
        self._memory.reset_peak()
        yield
        peak, after = self._memory.peak(), self._memory.held()
        self.peak = max(self.peak, peak)
        self._update.gradients = max(self._update.gradients, after - self._held)
        size = max(1, self._forward - before, peak - max(before, after))
        self._update.passes.append(MeasuredPass(micro.tokens.size, size))

    def end_forward(self) -> None:
        """Note that the backward pass begins, in which gradients may grow."""
        if self._memory is not None:
            self._forward = self._memory.peak()

    def largest(self) -> int:
        """Return the most tokens of a pass of the update: the budget, or one longer trajectory."""
        return max([self.tokens, *(each.tokens for each in self._update.passes)])

    def halve(self, passes: Sequence[MicroBatch], error: Exception) -> int:
        """Return half the tokens of the largest pass, because one ran out of memory.

        The next `UPDATES` updates have no more; later ones may. Raises ConfigError if the largest
        is one trajectory.
        """
        largest = max(passes, key=lambda micro: micro.tokens.size)
        if len(largest.lengths) == 1:
            raise out_of_memory_error(passes, error) from error
        self.tokens = largest.tokens.size // 2
        self._update = MeasuredUpdate(self.tokens)
        log.warning(
            "Out of memory: passes are halved", tokens=self.tokens, error=_without_advice(error)
        )
        return self.tokens


def tokens_within(room: float, measured: Sequence[MeasuredPass]) -> int:
    """Return how many tokens need `room` bytes; not positive if even a fixed part does not fit.

    Careful in both directions: more tokens than the pass that needed most cost its bytes per token,
    as if it had no fixed part; fewer save what the smallest pass shows, as far as this is credible.
    """
    most = max(measured, key=lambda each: each.size)
    smallest = min(measured, key=lambda each: each.tokens)
    rate = most.size / most.tokens
    if room >= most.size:
        return int(room / rate)
    shown = (most.size - smallest.size) / max(1, most.tokens - smallest.tokens)
    slope = min(rate, max(LEAST_SLOPE * rate, shown))
    return int(most.tokens - (most.size - room) / slope)


def memory_metrics(tokens: int, peak: int) -> dict[str, float]:
    """Return the metrics of an update. `tokens`: most of a pass. `peak`: in bytes; 0: not measured,
    then there are none.
    """
    if not peak:
        return {}
    return {"micro_batch_tokens": float(tokens), "micro_batch_peak_bytes": float(peak)}


def out_of_memory_error(passes: Sequence[MicroBatch], error: Exception) -> ConfigError:
    """Return the error of an update that ran out of memory, with the largest of its passes."""
    largest = max(passes, key=lambda micro: micro.tokens.size)
    single = len(largest.lengths) == 1
    what = "trajectory" if single else "pass"
    change = (
        "set trainer.gradient_checkpointing = true, lower sampling.max_tokens"
        if single
        else "lower trainer.micro_batch_tokens"
    )
    return ConfigError(
        f"trainer: a {what} of {largest.tokens.size:,} tokens does not fit into memory: "
        f"{_without_advice(error)}",
        hint=f"{change}, or end other processes on this GPU",
    )


def _without_advice(error: Exception) -> str:
    """Return torch's error text without its advice on fragmentation."""
    return str(error).partition(" If reserved")[0]
