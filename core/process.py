"""Processes of this machine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.errors import ConfigError

MEETING = "AGENTRL_MEETING"  # where ranks of one machine meet; those of many: MASTER_ADDR


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the processes that learn together this one is. `local`: among its machine's.

    `meeting`: a URL that torch.distributed takes.
    """

    rank: int
    local: int
    size: int
    meeting: str


def place(environ: Mapping[str, str]) -> Place | None:
    """The place that a launcher gave this process; None where none did. Raises ConfigError."""
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        local = int(environ.get("LOCAL_RANK", str(rank)))
    except ValueError as error:
        raise ConfigError(f"RANK, WORLD_SIZE, LOCAL_RANK: {error}") from error
    if not 0 <= rank < size:
        raise ConfigError(f"RANK: {rank} is none of {size}")
    return Place(rank, local, size, environ.get(MEETING, "env://"))


def process_began(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; tells a reused pid; None if it ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def resident_bytes() -> int:
    """What this process holds in memory; 0 where there is no /proc to tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
