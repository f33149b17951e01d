"""Directories that exist whole or not at all."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from core import manifest
from core.errors import CheckpointError
from core.manifest import Manifest, Probe, verify

__all__ = ["Manifest", "publish", "remove", "verify", "whole_directory"]


def publish(
    directory: Path,
    write: Callable[[Path], Probe | None],
    *,
    checkpoint_id: str,
    version: int,
    parent: str | None,
) -> Manifest:
    """Let `write` fill a directory; it appears under its name whole, durable, with a manifest.

    What `write` returns is the manifest's probe.

    Raises CheckpointError where the directory exists or the disk refuses; nothing is left then.
    """
    with whole_directory(directory) as partial:
        probe = write(partial)
        described = Manifest(checkpoint_id, version, parent, manifest.digests(partial), probe)
        manifest.write(partial, described)
    return described


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """A sibling to write into; synced and renamed to `directory` at the end, or removed.

    Only one writer per name: what an interrupted one left is replaced. Raises CheckpointError.
    """
    if directory.exists():
        raise CheckpointError(f"{directory} exists already", mend="choose another directory")
    partial = directory.with_name(f".{directory.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        for path in (*partial.rglob("*"), partial):
            _sync(path)
        partial.rename(directory)
        _sync(directory.parent)
    except OSError as error:
        text = error.strerror or str(error)
        raise CheckpointError(f"{directory}: cannot be written: {text}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove(directory: Path) -> None:
    """Delete a checkpoint; it is gone under its name before its first file goes. Absent is fine."""
    doomed = directory.with_name(f".{directory.name}.removed")
    if directory.exists():
        directory.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
