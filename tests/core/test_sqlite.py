import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentrl.broker.embedded_queue_file import QueueFile
from agentrl.core.sqlite import lock_hint
from agentrl.db.store import open_store


def _open_queue_file(path: Path) -> None:
    QueueFile(path).close()


def _open_store(path: Path) -> None:
    open_store(f"sqlite:///{path}").close()


@pytest.mark.parametrize("open_file", [_open_queue_file, _open_store])
def test_a_new_file_that_another_process_locks_is_waited_for(
    tmp_path: Path, open_file: Callable[[Path], None]
) -> None:
    """SQLite refuses at once there, whatever its timeout is."""
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        unlock_timer = threading.Timer(0.3, other.execute, ["COMMIT"])
        unlock_timer.start()
        open_file(path)
        unlock_timer.join()


def test_the_hint_does_not_name_a_process_that_locks_a_file_of_another_file_system(
    tmp_path: Path,
) -> None:
    """Two file systems may use the same inode number."""
    path = tmp_path / "store.db"
    path.touch()
    like = f"1: POSIX ADVISORY WRITE {os.getpid()} 00:99:{path.stat().st_ino} 0 EOF"
    locks = tmp_path / "locks"
    locks.write_text(f"{like}\n")
    assert lock_hint(path, locks).startswith("another process writes to it")
    with path.open():
        assert lock_hint(path, locks).startswith(f"pid {os.getpid()} (")
