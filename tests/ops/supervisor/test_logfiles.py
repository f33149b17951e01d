"""Logs that grow: their last words, and what becomes of them."""

import os
import resource
from pathlib import Path

from agentrl.ops.supervisor.exit_reasons import END, last_line
from agentrl.ops.supervisor.logfiles import rotate

LINE = b'{"event": "Policy replaced", "level": "info"}\n'


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.write_bytes(LINE * 1000 + b"Traceback\nOSError: no room\n\n")
    assert log.stat().st_size < END
    assert last_line(log) == "OSError: no room"
    with log.open("r+b") as file:
        os.truncate(file.fileno(), 2**31)  # a hole of two GiB, then words
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe last words\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert last_line(log) == "the last words"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


def test_a_log_that_is_gone_gives_a_text(tmp_path: Path) -> None:
    assert last_line(tmp_path / "gone.log") == "the log cannot be read: No such file or directory"


def test_a_log_beyond_its_limit_is_moved_aside_and_its_writer_goes_on(tmp_path: Path) -> None:
    log, small = tmp_path / "big.log", tmp_path / "small.log"
    small.write_bytes(b"a few words\n")
    with log.open("ab", buffering=0) as writer:
        writer.write(LINE * 100)
        assert rotate(tmp_path, 1000) == [log]
        writer.write(b"more\n")
        assert (tmp_path / "big.log.1").read_bytes() == LINE * 100
        assert log.read_bytes() == b"more\n"
        writer.write(LINE * 50)
        assert rotate(tmp_path, 1000) == [log]
    assert (tmp_path / "big.log.1").read_bytes() == b"more\n" + LINE * 50
    assert small.read_bytes() == b"a few words\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.log", "big.log.1", "small.log"]


def test_where_no_copy_can_be_made_the_end_of_the_log_stays(tmp_path: Path) -> None:
    log = tmp_path / "big.log"
    log.write_bytes(LINE * 100)
    (tmp_path / "big.log.partial").symlink_to("/dev/full")
    assert rotate(tmp_path, 1000) == [log]
    assert log.read_bytes() == LINE * 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.log"]
