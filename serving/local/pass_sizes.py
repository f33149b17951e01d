"""Sizes of the local engine's passes by device, from which `agentrl doctor` plans its memory."""

from dataclasses import dataclass

PIECE = 512  # tokens of one row in one pass
ROW = 128  # tokens: the shortest row of the KV cache; rows grow by so much on a CPU
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


def row_length(device: str, tokens: int) -> int:
    """Return the length of the KV cache's rows for that many tokens.

    It doubles, because a GPU's recorded passes end when rows grow. A CPU may read rows at full
    length, so they are no longer than needed.
    """
    return -(-tokens // ROW) * ROW if device.startswith("cpu") else double_until(ROW, tokens)


def double_until(size: int, need: int) -> int:
    """Return the first of `size`, 2 `size`, 4 `size`, … that is not below `need`."""
    while size < need:
        size *= 2
    return size
