"""How this process's memory goes back to the system: a setting of glibc, nothing elsewhere.

malloc learns from the first large block that is freed to keep such blocks on its heap. Small ones
that live longer then settle in the gaps, so that every part of the logits takes new memory: as much
as all logits at once, which computing them in parts was to avoid.
"""

import ctypes
import gc

MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
LARGE = 12 * 2**20  # bytes; a part of the logits has 16 MiB


def map_large_blocks() -> bool:
    """Blocks of `LARGE` bytes are mapped apart and go back when freed; whether that can be had."""
    try:
        found: int = ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE)
    except (AttributeError, OSError):
        return False
    return found == 1


def release_unused() -> bool:
    """Give freed memory back to the system; whether any went."""
    gc.collect()
    try:
        found: int = ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return False
    return found == 1
