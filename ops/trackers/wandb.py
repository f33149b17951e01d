"""Weights & Biases: a file for `wandb sync`, or online."""

import glob
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import wandb

from agentrl.ops.trackers.base import Figure, TrackerError, TrackerPlace, figure
from agentrl.ops.trackers.wandb_file import whole

VERSION = "version"  # the x-axis: W&B counts steps of its own


class WeightsAndBiases:
    """A Tracker. The W&B process writes blocks of rows, the last one at its end.

    Therefore offline files do not count as holding figures: each start exports all rows to a new
    file, which replaces the old one when it is complete.
    """

    def __init__(self, ground: TrackerPlace) -> None:
        self._ground = ground
        self._run: Any = None
        self._id = ""
        self._file: Path | None = None  # offline

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
            x_sync_dir_suffix=uuid.uuid4().hex[:8],  # two starts within a second
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not online:
                _remove([former for former in _formers(folder, run) if not whole(former)])
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
            self._id, self._file = run, None if online else Path(self._run.settings.sync_file)
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
        """See Tracker.finish. The figures are written or sent once W&B's process has ended.

        It does not report a file that it could not write, so the file is checked.
        """
        self._run, file = None, self._file
        self._file = None
        try:
            wandb.teardown(exit_code=0)
        except SystemExit as error:  # it leaves with the code of W&B's process
            raise TrackerError(f"wandb: its process exited with {error.code}") from error
        if file is None:
            return
        if not whole(file):
            raise TrackerError(f"wandb: {file} could not be completed")
        _remove([each for each in _formers(self._ground.folder, self._id) if each != file])


def _formers(folder: Path, run: str) -> list[Path]:
    """Return the offline files of a run."""
    return list(folder.glob(f"wandb/offline-run-*/run-{glob.escape(run)}.wandb"))


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        shutil.rmtree(file.parent)


def _figures(rows: Iterable[Mapping[str, Any]]) -> Iterator[Figure]:
    for row in rows:
        for name, value in row.items():
            if VERSION in row and isinstance(value, int | float):
                yield figure(int(row[VERSION]), name, value)
