"""This machine's memory and that of its GPUs: all of it, and what is free now."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.ops.doctor.memory_items import HOST, MIB, VISIBLE, CardNames, name_cards

ASK_S = 10.0  # for nvidia-smi
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes of the machine's memory (None: unknown) and of its GPUs by name.

    `free`: bytes that no process uses now, by device; a device may be missing. `names`: see
    `name_cards`.
    """

    memory: int | None
    cards: Mapping[str, int]
    free: Mapping[str, int] = field(default_factory=dict)
    names: CardNames = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU as nvidia-smi lists it. `total`, `free`: bytes; None: unknown."""

    index: str
    uuid: str
    total: int
    free: int | None


def this_machine(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> Machine:
    """Return this machine's memory, limited by the cgroup, and its GPUs by nvidia-smi."""
    host = {name.rstrip(":"): size * 1024 for name, size in _read_sizes(meminfo).items()}
    totals, free = ([host[key]] if key in host else [] for key in ("MemTotal", "MemAvailable"))
    limit, used = (_read_number(cgroup / f"memory.{name}") for name in ("max", "current"))
    if limit is not None:
        totals.append(limit)
        if used is not None:  # with the page cache, which gives way
            free.append(limit - used + _read_sizes(cgroup / "memory.stat").get("inactive_file", 0))
    cards = _query_cards()
    names = name_cards([(card.index, card.uuid) for card in cards], os.environ.get(VISIBLE))
    return Machine(
        min(totals, default=None),
        {names[card.index]: card.total for card in cards},
        {names[card.index]: card.free for card in cards if card.free is not None}
        | ({HOST: max(0, min(free))} if free else {}),
        names,
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


def _query_cards() -> list[Card]:
    """Return every GPU in the order of the PCI bus. Without a driver there is none."""
    fields = "--query-gpu=index,uuid,memory.total,memory.free"
    command = ["nvidia-smi", fields, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=True)
        rows = [map(str.strip, line.split(",")) for line in answer.stdout.splitlines()]
        return [
            Card(index, uuid, int(total) * MIB, int(free) * MIB if free.isdecimal() else None)
            for index, uuid, total, free in rows
        ]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
