import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentrl.broker.embedded_queue_file import QueueFile
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
