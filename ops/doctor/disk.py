"""Estimates the disk space of a run's checkpoints and snapshots before it starts.

tracks · snapshot_every · keep_checkpoints ─▶ most checkpoints at once ─┐
Shape ─▶ bytes of a checkpoint, of a snapshot ──────────────────────────┴▶ Estimate
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentrl.core.config.config import Config
from agentrl.db.registry.tracks import parse_track
from agentrl.ops.configuration.model_spec import ModelSpec
from agentrl.ops.doctor.memory_items import element_bytes, size_text
from agentrl.ops.doctor.trainer_memory import trained_parameters
from agentrl.trainer.retention import SNAPSHOTS


@dataclass(frozen=True, slots=True)
class Estimate:
    """Disk estimate. `checkpoints`: largest number at the same time, each of `checkpoint` bytes.

    `snapshots`: of `snapshot` bytes each, including the one being written.
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
            f"{self.checkpoints} checkpoints of {size_text(self.checkpoint)} and {self.snapshots} "
            f"snapshots of {size_text(self.snapshot)} take {size_text(self.total)}"
        )


def estimate(config: Config, shape: ModelSpec) -> Estimate:
    """Estimate for a configuration. Checkpoint 0 and an adapter's base are links to the model."""
    count = trained_parameters(config, shape)
    moments = 2 if config.trainer.optimizer == "adamw" else 0
    return Estimate(
        checkpoints=most_checkpoints(config),
        checkpoint=count * (4 if config.trainer.lora.rank else element_bytes(config)),
        snapshots=SNAPSHOTS + 1,
        snapshot=4 * count * (1 + moments),
    )


def most_checkpoints(config: Config) -> int:
    """Return the largest number of checkpoints at the same time, without checkpoint 0.

    By the rules of `trainer/retention.py` these are: those since the newest snapshot and before it
    as far as a track lags, the newest ones, those of older snapshots and refreshed tracks, and the
    one being written.
    """
    every, keep = config.trainer.snapshot_every, config.trainer.keep_checkpoints
    tracks = {parse_track(track) for server in config.policy_servers() for track in server.tracks}
    lag = max((track.number for track in tracks if track.kind == "lagged"), default=0)
    refreshed = sum(track.kind == "refreshed" for track in tracks)
    return max(every + lag, keep) + 1 + (SNAPSHOTS - 1) + 2 * refreshed


def bytes_under(folder: Path) -> int:
    """Return the bytes of files in a folder; a linked file counts once, a deleted one not."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                state = (folder / place / name).lstat()
                found[state.st_ino] = state.st_size
    return sum(found.values())
