"""Writes what a process waits for to the database, if no supervisor reads its log.

produces  rows of service_outages, for `agentrl up`, `agentrl status` and the dashboard elsewhere
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from sqlalchemy.orm import Session

from agentrl.core.config.config import Config
from agentrl.core.errors import StoreError
from agentrl.core.logging import get_logger
from agentrl.core.telemetry.outages import REMIND_S, Outage, current_outages
from agentrl.core.types import ID_LENGTH
from agentrl.db.admin import migrate
from agentrl.db.registry import outages
from agentrl.db.store import open_store
from agentrl.db.transitions import runs

LOOK_S = 2.0  # between two looks at what the process waits for

log = get_logger()


@contextmanager
def report_outages(config: Config, process: str, look_s: float = LOOK_S) -> Iterator[None]:
    """Report what this process waits for. `process`: its name; `look_s`: between two looks."""
    ended = threading.Event()
    name = f"{process} ({socket.gethostname()} {os.getpid()})"[-ID_LENGTH:]
    thread = threading.Thread(
        target=_report, args=(config, name, ended, look_s), name="outages", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _report(config: Config, process: str, ended: threading.Event, look_s: float) -> None:
    written: list[str] = []  # services
    looks, since = max(1, round(REMIND_S / look_s)), 0
    while not ended.wait(look_s):
        found, since = current_outages(process), since + 1
        services = [each.service for each in found]
        if services == written and (not written or since < looks):
            continue
        if _write(config, process, found):
            written, since = services, 0
    if written:
        _write(config, process, [])


def _write(config: Config, process: str, found: list[Outage]) -> bool:
    """Replace the rows of the process; False if the database is unavailable, or has no such run."""

    def put(session: Session) -> bool:
        run = runs.find_run(session, config.run.name)
        if run is not None:
            outages.put_outages(session, run.run_id, process, found)
        return run is not None

    with suppress(StoreError), closing(open_store(config.store_url(), threads=1)) as store:
        migrate.require_current(store)
        return store.transact(put, patience_s=0.0)
    return False
