"""Makes glibc return freed memory to the system. Other C libraries are not changed.

After the first large block is freed, malloc keeps such blocks on its heap. Small blocks that live
longer then fill the gaps, so each chunk of logits takes new memory, and chunking saves nothing.
"""

import ctypes

MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
LARGE = 12 * 2**20  # bytes; a part of the logits has 16 MiB


def map_large_blocks() -> bool:
    """Let malloc map blocks of `LARGE` bytes separately; return whether that is possible."""
    try:
        found: int = ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE)
    except (AttributeError, OSError):
        return False
    return found == 1


def release_unused() -> bool:
    """Return freed memory to the system; return whether there was any."""
    try:
        found: int = ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return False
    return found == 1
