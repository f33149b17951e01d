"""Chooses the checkpoint of a track: pure functions of the live lineage."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Track:
    """A track. kind: current | lagged | refreshed | pinned. `number`: its k."""

    kind: str
    number: int = 0
    checkpoint_id: str = ""


def parse_track(track: str) -> Track:
    """Parse current, lagged(k), refreshed(k), pinned(checkpoint_id). Raises ConfigError."""
    if track == "current":
        return Track("current")
    if match := re.fullmatch(r"(lagged|refreshed)\((\d{1,9})\)", track, re.ASCII):
        if int(match[2]) < 1:
            raise ConfigError(f"track {track}: k must be at least 1")
        return Track(match[1], int(match[2]))
    if match := re.fullmatch(r"pinned\(([^()\s]+)\)", track):
        return Track("pinned", checkpoint_id=match[1])
    raise ConfigError(
        f"unknown track {track!r}",
        hint="use current, lagged(k), refreshed(k) or pinned(checkpoint_id)",
    )


def select_checkpoint(track: str, live: Sequence[tuple[int, str]]) -> str:
    """Return the checkpoint_id to serve. The live lineage is (version, checkpoint_id) in any order.

    current: the newest, as lagged(0). lagged(k): the newest at most at latest − k. refreshed(k):
    the newest whose version is a multiple of k. Without one, the oldest. pinned(c): c,
    live or not.
    Raises ConfigError for an unknown track and for an empty lineage.
    """
    parsed = parse_track(track)
    if parsed.kind == "pinned":
        return parsed.checkpoint_id
    if not live:
        raise ConfigError(f"track {track}: the run has no live checkpoint")
    ordered = sorted(live)
    latest = ordered[-1][0]
    if parsed.kind == "refreshed":
        fits = [name for version, name in ordered if version % parsed.number == 0]
    else:
        fits = [name for version, name in ordered if version <= latest - parsed.number]
    return fits[-1] if fits else ordered[0][1]


def needed_checkpoints(
    tracks: Sequence[str], live: Sequence[tuple[int, str]], snapshot: int
) -> set[str]:
    """Return the checkpoints that the tracks need now, soon, and after a return to `snapshot`.

    `snapshot`: live version to which a trainer may return.
    """
    found = set()
    back = [(version, name) for version, name in live if version <= snapshot]
    for track in tracks:
        found |= {select_checkpoint(track, lineage) for lineage in (live, back) if lineage}
    lags = [parsed.number for parsed in map(parse_track, tracks) if parsed.kind == "lagged"]
    return found | {name for version, name in live if version >= snapshot - max(lags, default=0)}
