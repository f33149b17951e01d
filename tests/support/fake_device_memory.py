"""A device's memory as counters: what is taken beyond its size runs out, as on a GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from agentrl.trainer.engines.pass_budget import DeviceMemory


class FakeDeviceMemory(DeviceMemory):
    """A device of `size` bytes. `failures`: how often memory ran out. `gradients`: their bytes."""

    def __init__(self, size: int) -> None:
        self.size, self.failures = size, 0
        self.gradients: Callable[[], int] = lambda: 0
        self._held, self._peak = 0, 0

    def held(self) -> int:
        return self._held + self.gradients()

    def peak(self) -> int:
        return max(self._peak, self.held())

    def reset_peak(self) -> None:
        self._peak = self.held()

    def free(self) -> int:
        return self.size - self.held()

    def hold(self, count: int) -> None:
        """Take so many bytes until the end. Raises torch.OutOfMemoryError."""
        if count > self.free():
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB. If reserved")
        self._held += count
        self._peak = self.peak()

    @contextmanager
    def holding(self, count: int) -> Iterator[None]:
        """Take so many bytes for a while. Raises torch.OutOfMemoryError."""
        self.hold(count)
        try:
            yield
        finally:
            self._held -= count
