"""Threads without which their process is of no use."""

import os
import threading
from collections.abc import Callable

from core.errors import AgentRLError, in_words
from core.logging import get_logger

DIED = 70  # exit code, as EX_SOFTWARE of sysexits.h

log = get_logger()


def vital_thread(
    name: str, work: Callable[[], None], *, leave: Callable[[int], object] = os._exit
) -> threading.Thread:
    """A daemon thread, not started yet; where `work` raises, the process ends with one clear line.

    `work` may return: its owner told it to.
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:
            log.critical(
                "A thread that the process needs has died: the process ends",
                thread=name,
                error=in_words(error),
                exc_info=not isinstance(error, AgentRLError),
            )
            leave(DIED)

    return threading.Thread(target=run, name=name, daemon=True)
