"""Writes what a process waits for to the database, if no supervisor reads its log.

produces  rows of service_outages, for `agentrl up`, `agentrl status` and the dashboard elsewhere
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from agentrl.core.config.config import Config
from agentrl.core.errors import StoreError
from agentrl.core.logging import get_logger
from agentrl.core.telemetry.outages import REMIND_S, Outage, current_outages
from agentrl.core.types import ID_LENGTH
from agentrl.db.engine import LEASE
from agentrl.db.registry import outages
from agentrl.db.store import open_store
from agentrl.db.transitions import runs

LOOK_S = 2.0  # between two looks at what the process waits for
END_S = 2.0  # for the last row to go, at the end of a process

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
        thread.join(END_S)


def _report(config: Config, process: str, ended: threading.Event, look_s: float) -> None:
    written: list[str] = []  # services
    repeat, looks = max(1, round(REMIND_S / look_s)), 0
    while not ended.wait(look_s):
        found, looks = current_outages(process), looks + 1
        services = [each.service for each in found]
        if services == written and (not written or looks < repeat):
            continue
        if _write(config, process, found):
            written, looks = services, 0
    if written:
        _write(config, process, [])


def _write(config: Config, process: str, found: list[Outage]) -> bool:
    """Replace the rows of the process; False if that is not possible now."""

    def put(session: Session) -> bool:
        run = runs.find_run(session, config.run.name)
        if run is not None:
            outages.put_outages(session, run.run_id, process, found)
        return run is not None

    try:
        with closing(open_store(config.store_url(), threads=1, timeouts=LEASE)) as store:
            return store.transact(put, patience_s=0.0)
    except (StoreError, SQLAlchemyError) as error:  # no tables yet, or the run has been deleted
        log.debug("Outages not written", error=str(error))
        return False
