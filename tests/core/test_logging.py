"""Logs that cannot be written make a gap, never an error."""

import io

import pytest

from core import logging
from core.logging import Willing


class Disk(io.StringIO):
    """`full`: it takes nothing."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(27, "File too large")
        return super().write(text)


def test_a_full_disk_leaves_a_gap_that_says_how_long_it_is() -> None:
    disk = Disk()
    willing = Willing(disk)
    print("one", file=willing, flush=True)
    disk.full = True
    print("two", file=willing, flush=True)
    print("three", file=willing, flush=True)
    disk.full = False
    print("four", file=willing, flush=True)
    print("five", file=willing, flush=True)
    lines = disk.getvalue().splitlines()
    assert lines == ["one", '{"event": "log lines are missing", "count": 2}', "four", "five"]


def test_a_process_logs_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    monkeypatch.setattr("sys.stderr", disk)
    logging.configure("worker")
    disk.full = True
    logging.get_logger().warning("lease not extended")
    disk.full = False
    logging.get_logger().warning("it goes on")
    first, second = disk.getvalue().splitlines()
    assert '"count": 1' in first
    assert '"event": "it goes on"' in second
