"""How much disk a run's checkpoints and snapshots take, computed before it starts.

tracks · snapshot_every · keep_checkpoints ─▶ most checkpoints at once ─┐
Shape ─▶ bytes of a checkpoint, of a snapshot ──────────────────────────┴▶ Estimate
"""

from dataclasses import dataclass
from pathlib import Path

from core.config import Config
from db.tracks import needed, parse
from ops.parts import GIB, element_bytes, trained
from ops.shape import Shape
from trainer.retention import SNAPSHOTS


@dataclass(frozen=True, slots=True)
class Estimate:
    """`checkpoints`: the most that lie there at once, each of `checkpoint` bytes.

    `snapshots` of them, each of `snapshot` bytes; one more while it is written.
    """

    checkpoints: int
    checkpoint: int
    snapshots: int
    snapshot: int

    @property
    def total(self) -> int:
        return self.checkpoints * self.checkpoint + self.snapshots * self.snapshot

    def words(self) -> str:
        return (
            f"{self.checkpoints} checkpoints of {_size(self.checkpoint)} and {self.snapshots} "
            f"snapshots of {_size(self.snapshot)} take {_size(self.total)}"
        )


def estimate(config: Config, shape: Shape) -> Estimate:
    """Of a run as configured. Checkpoint 0 and an adapter's base are links to the model's files."""
    count = trained(config, shape)
    moments = 2 if config.trainer.optimizer == "adamw" else 0
    return Estimate(
        checkpoints=most_checkpoints(config),
        checkpoint=count * (4 if config.trainer.lora.rank else element_bytes(config)),
        snapshots=SNAPSHOTS + 1,
        snapshot=4 * count * (1 + moments),
    )


def most_checkpoints(config: Config) -> int:
    """How many versions are kept at once, checkpoint 0 not counted: by the rules of retention."""
    every, keep = config.trainer.snapshot_every, config.trainer.keep_checkpoints
    tracks = [track for server in config.policy_servers() for track in server.tracks]
    longest = max((parse(track).number for track in tracks), default=0)
    live, snapshots, most = [(0, "0")], [0], 0
    for version in range(1, 4 * every + keep + longest):
        live.append((version, str(version)))
        if version % every == 0:
            snapshots = [*snapshots, version][-SNAPSHOTS:]
        most = max(most, len(live) - 1)
        used = needed(tracks, live, snapshots[-1]) | {name for _, name in (live[0], *live[-keep:])}
        used |= set(map(str, snapshots))
        live = [each for each in live if each[1] in used]
    return most


def bytes_under(folder: Path) -> int:
    """What files there take; a link's file is counted once."""
    found = {}
    for path in folder.rglob("*"):
        state = path.lstat()
        found[state.st_ino] = state.st_size
    return sum(found.values())


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB // 10 else f"{count / 2**20:.0f} MiB"
