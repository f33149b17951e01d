"""This machine's memory and that of its GPUs: all of it, and what is free now."""

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.ops.doctor.memory_items import HOST, MIB

ASK_S = 10.0  # for nvidia-smi
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes of the machine's memory (None: unknown) and of its GPUs by name.

    `free`: bytes that no process uses now, by device; a device may be missing.
    """

    memory: int | None
    cards: Mapping[str, int]
    free: Mapping[str, int] = field(default_factory=dict)


def this_machine(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> Machine:
    """Return this machine's memory, limited by the cgroup, and its GPUs by nvidia-smi."""
    host = {name.rstrip(":"): size * 1024 for name, size in _read_sizes(meminfo).items()}
    totals, free = ([host[key]] if key in host else [] for key in ("MemTotal", "MemAvailable"))
    limit, used = (_read_number(cgroup / f"memory.{name}") for name in ("max", "current"))
    if limit is not None:
        totals.append(limit)
        if used is not None:  # with the page cache, which gives way
            free.append(limit - used + _read_sizes(cgroup / "memory.stat").get("inactive_file", 0))
    cards = {f"cuda:{index}": sizes for index, sizes in enumerate(_query_cards())}
    return Machine(
        min(totals, default=None),
        {name: sizes[0] for name, sizes in cards.items()},
        {name: sizes[1] for name, sizes in cards.items() if len(sizes) > 1}
        | ({HOST: max(0, min(free))} if free else {}),
    )


def _read_sizes(path: Path) -> dict[str, int]:
    """Return the number of each line `NAME NUMBER …`; empty if they cannot be read."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
        return {name: int(size) for name, size, *_ in lines}
    except (OSError, ValueError):
        return {}


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _query_cards() -> list[list[int]]:
    """Return total and, if known, free bytes of every GPU in torch's order.

    Without a driver there is none.
    """
    fields = "--query-gpu=memory.total,memory.free"
    command = ["nvidia-smi", fields, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=True)
        rows = [line.split(",") for line in answer.stdout.splitlines()]
        cards = [[int(total) * MIB] for total, _ in rows]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    for sizes, (_, free) in zip(cards, rows, strict=True):
        with suppress(ValueError):  # some drivers do not know it
            sizes.append(int(free) * MIB)
    return cards
