"""Sizes of the local engine's passes by device, from which `agentrl doctor` plans its memory."""

from dataclasses import dataclass

RECORDED = 8 * 2**30  # bytes of the largest model whose passes a GPU records
ROWS, COLUMNS, WIDTH = 16, 16, 512  # fewest rows and columns of a recorded pass; steps of its width


@dataclass(frozen=True, slots=True)
class PassSizes:
    """Sizes of passes. `group`: padded tokens of one. `waste`: tokens of padding that are cheaper
    than another pass. `patience`: tokens of running rows that requests wait to join together.
    """

    group: int
    waste: int
    patience: int

    @classmethod
    def on(cls, device: str) -> "PassSizes":
        """Return those of a device. A GPU needs hardly longer for more tokens."""
        return cls(4096, 64, 4) if device.startswith("cpu") else cls(16384, 8192, 8)
