"""Weights & Biases: a file that `wandb sync` sends, or online."""

import glob
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import wandb

from ops.trackers.tracker import Figure, Ground, TrackerError, figure

VERSION = "version"  # the x-axis: W&B counts steps of its own


class WeightsAndBiases:
    """A Tracker. W&B's own process writes blocks of rows, the last at its end; so offline nothing
    counts as held: each start tells all, into a file that takes the place of the last start's.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._run: Any = None

    def start(self, run: str, config: Mapping[str, Any]) -> Collection[Figure]:
        """See Tracker.start."""
        folder, online = self._ground.folder, self._ground.online
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not online:
                _remove(folder, run)
            self._run = wandb.init(
                project=self._ground.project,
                id=run,
                name=run,
                dir=folder,
                config=dict(config),
                mode="online" if online else "offline",
                resume="allow" if online else None,
                settings=settings,
            )
            self._run.define_metric("*", step_metric=VERSION)
            if online and self._run.resumed:
                return set(_figures(wandb.Api().run(self._run.path).scan_history()))
        except (wandb.Error, OSError) as error:
            raise TrackerError(f"wandb: {error}") from error
        return ()

    def log(self, version: int, metrics: Mapping[str, float]) -> None:
        """See Tracker.log."""
        try:
            self._run.log({VERSION: version, **metrics})
        except (wandb.Error, OSError) as error:
            raise TrackerError(f"wandb: {error}") from error

    def finish(self) -> None:
        """See Tracker.finish. What was told is written, or sent, once W&B's process has ended."""
        self._run = None
        wandb.teardown(exit_code=0)


def _remove(folder: Path, run: str) -> None:
    for former in folder.glob(f"wandb/offline-run-*-{glob.escape(run)}"):
        shutil.rmtree(former)


def _figures(rows: Iterable[Mapping[str, Any]]) -> Iterator[Figure]:
    for row in rows:
        for name, value in row.items():
            if VERSION in row and isinstance(value, int | float):
                yield figure(int(row[VERSION]), name, value)
