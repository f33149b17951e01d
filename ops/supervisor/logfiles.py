"""Starts processes that write to log files, and rotates those."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL_BYTES = 1024 * 1024  # bytes of the end that stay where a full disk takes no copy


def start_process(
    command: Sequence[str], log: Path | None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, without input; its output is appended to `log`.

    `log`: None: it shares the output of this process. `environment`: None: also its environment.
    """
    with contextlib.ExitStack() as stack:
        output = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            output = stack.enter_context(log.open("ab"))
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )


def rotate(folder: Path, limit: int) -> list[Path]:
    """Move what logs of more than `limit` bytes hold into NAME.log.1; those that were moved.

    A process keeps its file open and appends: the text is copied, then the file is emptied. What
    is written in that moment is lost.
    """
    moved = []
    for path in folder.glob("*.log"):
        with contextlib.suppress(OSError):  # one that is gone by now
            if path.stat().st_size > limit:
                _empty(path)
                moved.append(path)
    return moved


def _empty(path: Path) -> None:
    former = path.with_suffix(".log.1")
    partial = path.with_suffix(".log.partial")
    try:
        shutil.copyfile(path, partial)
        partial.replace(former)
        os.truncate(path, 0)
    except OSError:  # the disk is full: the older half goes first
        partial.unlink(missing_ok=True)
        former.unlink(missing_ok=True)
        with path.open("rb") as log:
            log.seek(-min(TAIL_BYTES, path.stat().st_size), os.SEEK_END)
            end = log.read()
        os.truncate(path, 0)
        with path.open("ab") as log:
            log.write(end)
