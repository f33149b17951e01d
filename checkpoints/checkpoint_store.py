"""Weights on their way: checkpoints in a store that every host reaches (`run.checkpoints`).

    trainer  whole directory in the cache ─▶ file by file, manifest.json last ─▶ the row names it
    others   the URL of a row ─▶ cache folder: downloaded, verified, renamed ─▶ load

They live here because trainer and servers may both import it, and like a body on the broker they
are published before a row claims them. What has no manifest is no checkpoint, so an upload that was
interrupted leaves nothing that looks whole. A path that is no URL is a directory, used where it is.
"""

import os
import shutil
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.checkpoints import manifest
from agentrl.checkpoints.remote import (
    LIMITS,
    Patience,
    TransferLimits,
    WeightsAway,
    is_away,
    opened,
    tried,
)
from agentrl.core import disk
from agentrl.core.errors import CheckpointError, ConfigError
from agentrl.core.logging import get_logger
from agentrl.core.retry import FOREVER, Retry

__all__ = ["Shelf", "TransferLimits", "WeightsAway", "check", "fetch", "is_url", "remove"]

ARRIVING = ".arriving"  # the folder of files under way, in that of a download
ABANDONED_S = 3600.0  # age of a download that nobody will finish

log = get_logger()


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where a run keeps its checkpoints: under `url`, or where that is empty in the folder `home`.

    `cache`: the folder of local copies of what lies under a URL; `stop` ends what takes long.
    """

    home: Path
    cache: Path = Path()
    url: str = ""
    stop: threading.Event | None = None
    limits: TransferLimits = LIMITS

    def local(self, checkpoint_id: str) -> Path:
        """The directory to write it into."""
        return (self.cache if self.url else self.home) / checkpoint_id

    def path(self, checkpoint_id: str) -> str:
        """What its row names."""
        if self.url:
            return f"{self.url.rstrip('/')}/{self.home.name}/{checkpoint_id}"
        return str(self.home / checkpoint_id)

    def put(self, checkpoint_id: str) -> str:
        """Bring what was written to where others find it: what its row names.

        Raises CheckpointError; nothing that looks whole is there then.
        """
        path = self.path(checkpoint_id)
        if self.url:
            _upload(self.local(checkpoint_id), path, self.stop, self.limits)
            _evict(self.cache, self.limits.cached)
        return path

    def names(self) -> list[str]:
        """What lies under the URL, orphans of interrupted uploads too; empty where there is none.

        Raises CheckpointError.
        """
        if not self.url:
            return []
        folder = f"{self.url.rstrip('/')}/{self.home.name}"

        def listed(fs: Any, path: str) -> list[str]:
            fs.invalidate_cache()
            return fs.ls(path, detail=False) if fs.isdir(path) else []

        found = tried(folder, Patience(self.limits.fetch_s, self.stop, self.limits), listed)
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)


def patience(stop: threading.Event | None) -> Retry:
    """How a process waits for checkpoints, or for the disk they go to: until `stop` is set, or not
    at all where it has none.
    """
    limit_s = 0.0 if stop is None else FOREVER
    return Retry("checkpoints", is_away, limit_s=limit_s, stop=stop)


def is_url(path: str) -> bool:
    return "://" in path


def check(url: str) -> None:
    """Raise ConfigError where no installed package speaks the URL's protocol.

    WeightsAway where its store is away.
    """
    try:
        opened(url)
    except WeightsAway:
        raise
    except CheckpointError as error:
        raise ConfigError(str(error), hint=error.hint) from error


def fetch(
    path: str, cache: Path, stop: threading.Event | None = None, limits: TransferLimits = LIMITS
) -> Path:
    """The directory of what a row names, and of its base where it is an adapter: whole, verified.

    stop: ends what takes long. Raises CheckpointError; WeightsAway where a later try may do better.
    """
    if not is_url(path):
        return Path(path)
    folder, _, name = path.rstrip("/").rpartition("/")
    if not manifest.plain(name):
        raise CheckpointError(f"{path}: ends in no name of a checkpoint")
    patience = Patience(limits.fetch_s, stop, limits)
    directory = _cached(path, cache / name, patience)
    named = manifest.named_base(directory)
    if named is not None and not named.exists():
        _cached(f"{folder}/{named.name}", cache / named.name, patience)
    _evict(cache, limits.cached)
    return directory


def remove(path: str, stop: threading.Event | None = None, limits: TransferLimits = LIMITS) -> None:
    """Delete what lies under a URL, its manifest first; absent is fine. Raises CheckpointError."""

    def removed(fs: Any, found: str) -> None:
        fs.invalidate_cache()
        if fs.exists(f"{found}/{manifest.FILE}"):
            fs.rm_file(f"{found}/{manifest.FILE}")
        if fs.exists(found):
            fs.rm(found, recursive=True)

    tried(path, Patience(limits.fetch_s, stop, limits), removed)


def _upload(
    directory: Path, url: str, stop: threading.Event | None, limits: TransferLimits
) -> None:
    """Every file, the manifest last, each found there in its size."""
    files = [*manifest.read(directory).files, manifest.FILE]
    try:
        for name in files:
            size = (directory / name).stat().st_size

            def put(fs: Any, path: str, name: str = name, size: int = size) -> None:
                target = f"{path}/{name}"
                fs.makedirs(target.rpartition("/")[0], exist_ok=True)
                fs.put_file(str(directory / name), target)
                fs.invalidate_cache()
                found = fs.size(target)
                if found is not None and found != size:
                    raise OSError(f"{name}: {found} bytes arrived of {size}")

            tried(url, Patience(limits.upload_s, stop, limits), put, size=size)
    except CheckpointError:
        try:
            remove(url, stop, limits)
        except CheckpointError as error:  # the trainer's next start looks for orphans
            log.warning("An interrupted upload stays", url=url, error=str(error))
        raise


def _cached(url: str, directory: Path, patience: Patience) -> Path:
    """The cached copy, downloaded where it is absent or damaged; its time of use is now."""
    if directory.exists():
        try:
            manifest.verify(directory)
        except CheckpointError:
            shutil.rmtree(directory, ignore_errors=True)
    if not directory.exists():
        partial = directory.with_name(f".{directory.name}.{uuid.uuid4().hex[:8]}.partial")
        try:
            _download(url, partial, patience)
            partial.rename(directory)
        except OSError as error:
            if not directory.exists():  # else another process was faster
                kind = WeightsAway if disk.is_transient(error.errno) else CheckpointError
                text = error.strerror or str(error)
                raise kind(f"{directory}: cannot be written: {text}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    os.utime(directory)
    return directory


def _download(url: str, partial: Path, patience: Patience) -> None:
    (partial / ARRIVING).mkdir(parents=True)
    _get(url, manifest.FILE, partial, patience)
    for name in manifest.read(partial).files:
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        _get(url, name, partial, patience)
    shutil.rmtree(partial / ARRIVING, ignore_errors=True)
    manifest.verify(partial)


def _get(url: str, name: str, partial: Path, patience: Patience) -> None:
    def size(fs: Any, path: str) -> int:
        return int(fs.size(f"{path}/{name}") or 2**30)

    def get(fs: Any, path: str) -> Path:
        """To a file of this try alone: one given up, which may go on, spoils no later one."""
        arriving = partial / ARRIVING / uuid.uuid4().hex
        fs.get_file(f"{path}/{name}", str(arriving))
        return arriving

    tried(url, patience, get, size=tried(url, patience, size)).rename(partial / name)


def _evict(cache: Path, kept: int) -> None:
    """Keep the copies last used, and every first checkpoint: adapters stand on it."""
    found = [path for path in cache.glob("[!.]*") if (path / manifest.FILE).is_file()]
    times = {path: _time(path) for path in found}
    for path in sorted(found, key=lambda one: -times[one])[kept:]:
        if _version(path) != 0:
            shutil.rmtree(path, ignore_errors=True)
    for path in cache.glob(".*.partial"):
        if time.time() - _time(path) > ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process was faster
        return 0.0


def _version(path: Path) -> int:
    try:
        return manifest.read(path).version
    except CheckpointError:
        return -1
