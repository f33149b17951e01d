"""The rank of a process that a launcher started."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.core.errors import ConfigError

MEETING = "AGENTRL_MEETING"  # where ranks of one machine meet; those of many: MASTER_ADDR
LAUNCH = "start the trainer with `torchrun`, or unset RANK and WORLD_SIZE"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The rank of this process. `local`: rank among the processes of its machine.

    `meeting`: rendezvous URL for torch.distributed.
    """

    rank: int
    local: int
    size: int
    meeting: str


def find_rank_place(environ: Mapping[str, str]) -> RankPlace | None:
    """Return the rank that a launcher gave; None without a launcher. Raises ConfigError."""
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        local = int(environ.get("LOCAL_RANK", str(rank)))
    except ValueError as error:
        raise ConfigError(f"RANK, WORLD_SIZE, LOCAL_RANK: {error}", hint=LAUNCH) from error
    if not 0 <= rank < size:
        raise ConfigError(f"RANK is {rank}, but WORLD_SIZE is {size}", hint=LAUNCH)
    return RankPlace(rank, local, size, environ.get(MEETING, "env://"))
