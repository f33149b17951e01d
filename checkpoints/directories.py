"""Atomic directories: they exist completely or not at all."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from agentrl.checkpoints import manifest
from agentrl.checkpoints.checkpoint_store import WeightsAway
from agentrl.checkpoints.manifest import Manifest, SaveReport, verify
from agentrl.core import disk_errors
from agentrl.core.errors import CheckpointError
from agentrl.core.trained_hash import ROOT

__all__ = ["Manifest", "publish", "remove", "verify", "write_directory"]

OS_ERROR = re.compile(r"\(os error (\d+)\)")  # in the text of a SafetensorError


def publish(  # noqa: PLR0913 - what a manifest says
    directory: Path,
    write: Callable[[Path], SaveReport | None],
    *,
    checkpoint_id: str,
    version: int,
    parent: str | None,
    trained_hash: str = ROOT,
) -> Manifest:
    """Let `write` fill a directory, then publish it atomically and durably with a manifest.

    Files whose digests `write` reports are not read again.

    Raises CheckpointError if the directory exists or may not be written, and WeightsAway if the
    disk is full or unavailable; then nothing is left.
    """
    with write_directory(directory) as partial:
        report = write(partial) or SaveReport()
        digests = manifest.digests(partial, report.digests)
        described = Manifest(checkpoint_id, version, parent, digests, report.probe, trained_hash)
        manifest.write(partial, described)
    return described


@contextmanager
def write_directory(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory, which is synced and renamed to `directory` at the end.

    There is only one writer per name: leftovers of an interrupted writer are replaced. Raises
    CheckpointError if the directory exists or may not be written, and WeightsAway if the disk is
    full or unavailable: a later try may succeed.
    """
    if directory.exists():
        raise CheckpointError(f"{directory} exists already", hint="choose another directory")
    partial = directory.with_name(f".{directory.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        for path in (*partial.rglob("*"), partial):
            _sync(path)
        partial.rename(directory)
        try:
            _sync(directory.parent)
        except OSError:
            directory.rename(partial)  # else the next try finds the name taken
            raise
    except OSError as error:
        raise _write_error(directory, error.strerror or str(error), error.errno) from error
    except SafetensorError as error:
        found = OS_ERROR.search(str(error))
        if found is None:
            raise
        raise _write_error(directory, str(error), int(found[1])) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove(directory: Path) -> None:
    """Delete a checkpoint; it is renamed first. It may be absent."""
    trash = directory.with_name(f".{directory.name}.removed")
    if directory.exists():
        directory.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def _write_error(directory: Path, reason: str, number: int | None) -> CheckpointError:
    """Create the error of a failed write. `number`: errno."""
    text = f"{directory}: cannot be written: {reason}"
    if disk_errors.is_transient(number):
        return WeightsAway(text, hint=f"free space in {directory.parent}")
    return CheckpointError(text, hint=f"check that the trainer may write to {directory.parent}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
