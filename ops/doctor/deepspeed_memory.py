"""The memory items of the ranks of a DeepSpeed trainer.

ZeRO 1  shards moments and masters, a second copy of what is trained; offload: on the host
ZeRO 2  gradients too
ZeRO 3  weights and the reference too; offload = "all": on the host; rank 0 alone reads them whole
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentrl.core.config.config import Config
from agentrl.ops.doctor.memory_items import HOST, TEACHER, MemoryItem, element_bytes

SHARDED = {"moments": 1, "masters": 1, "gradients": 2, "weights": 3, "reference": 3}  # from ZeRO …
OFFLOADED = {"optimizer": {"moments", "masters"}, "all": {"moments", "masters", "weights"}}
KEY = "trainer.deepspeed.zero"


def over_ranks(config: Config, parts: Sequence[MemoryItem]) -> Iterator[MemoryItem]:
    """`parts`: of a trainer of one process. Counts the ranks that start on this machine."""
    if config.trainer.engine == "torch":
        yield from parts
        return
    every = [*parts, *_more(config, parts)]
    for rank in range(config.trainer.ranks):
        for part in every:
            if rank == 0 or not _is_of_rank0(config, part):
                yield _of_rank(config, part, rank)


def _is_of_rank0(config: Config, part: MemoryItem) -> bool:
    """Return whether only rank 0 has it: a teacher, a snapshot, a checkpoint or, with ZeRO 3, the
    model while it is read.
    """
    read = part.what.startswith("weights while read") and config.trainer.deepspeed.zero == 3
    return read or part.what.startswith((TEACHER, "snapshot", "checkpoint"))


def _more(config: Config, parts: Sequence[MemoryItem]) -> Iterator[MemoryItem]:
    """What DeepSpeed holds beside."""
    gradients = next(part for part in parts if part.what == "gradients")
    if config.trainer.deepspeed.zero:
        yield replace(gradients, what="masters")
    sent = min(gradients.size, 2 * 4 * config.trainer.deepspeed.bucket)
    yield replace(gradients, what="sent at once", size=sent)


def _of_rank(config: Config, part: MemoryItem, rank: int) -> MemoryItem:
    section, ranks = config.trainer.deepspeed, config.trainer.ranks
    device = part.device if part.device == HOST else f"{part.device.partition(':')[0]}:{rank}"
    if part.what in OFFLOADED.get(section.offload, ()):
        device = HOST
    size, lower = part.size, part.lower
    if section.weights == "model" and part.what in ("weights", "reference"):
        size = size * element_bytes(config) // 4
    if section.zero >= SHARDED.get(part.what, 4):
        size = -(-size // ranks)
    elif part.what in SHARDED:
        lower = KEY
    return MemoryItem(device, f"trainer rank {rank}", part.what, size, lower)
