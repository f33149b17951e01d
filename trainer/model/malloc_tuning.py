"""Makes glibc return freed memory to the system. Other C libraries are not changed.

After the first large block is freed, malloc keeps such blocks on its heap. Small blocks that live
longer then fill the gaps, so each chunk of logits takes new memory, and chunking saves nothing.
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
