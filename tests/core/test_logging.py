"""Logs that cannot be written make a gap, never an error."""

import io
import json
import threading

import pytest
import structlog

from agentrl.core import logging
from agentrl.core.logging import BestEffortStream


class Disk(io.StringIO):
    """`full`: it takes nothing."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(27, "File too large")
        return super().write(text)


def test_a_full_disk_leaves_a_gap_that_says_how_long_it_is() -> None:
    disk = Disk()
    willing = BestEffortStream(disk)
    print("one", file=willing, flush=True)
    disk.full = True
    print("two", file=willing, flush=True)
    print("three", file=willing, flush=True)
    disk.full = False
    print("four", file=willing, flush=True)
    print("five", file=willing, flush=True)
    lines = disk.getvalue().splitlines()
    assert lines == ["one", '{"event": "Log lines are missing", "count": 2}', "four", "five"]


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


def test_every_thread_of_a_process_says_whose_line_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    monkeypatch.setattr("sys.stderr", disk)
    logging.configure("worker", form="json", run="mine")
    logging.bind_process(run_id="mine-1")
    thread = threading.Thread(target=logging.get_logger().info, args=("Lease extended",))
    thread.start()
    thread.join()
    with structlog.contextvars.bound_contextvars(episode_id="e", fence=2):
        logging.get_logger().info("Attempt failed", run_id="told here")
    first, second = map(json.loads, disk.getvalue().splitlines())
    assert {**first, "timestamp": ""} == {
        "event": "Lease extended",
        "level": "info",
        "process": "worker",
        "run": "mine",
        "run_id": "mine-1",
        "timestamp": "",
    }
    assert (second["episode_id"], second["fence"], second["run_id"]) == ("e", 2, "told here")


def test_a_format_that_is_named_holds_whatever_stderr_is(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    monkeypatch.setattr("sys.stderr", disk)
    logging.configure("worker", form="text")
    logging.get_logger().info("Serving track")
    monkeypatch.setattr(disk, "isatty", lambda: True)
    logging.configure("worker", form="json", level="WARNING")
    logging.get_logger().info("too little")
    logging.get_logger().warning("Serving track")
    text, line = disk.getvalue().splitlines()
    assert not text.startswith("{")
    assert json.loads(line)["event"] == "Serving track"
